/** Adapters go to PEFT and back: what PEFT computed with files of our writer is what our decoder computes. */
import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { readAdapterFiles, writeAdapterFiles } from '../../src/formats/peft.ts';
import { readSafetensors } from '../../src/formats/safetensors.ts';
import { createOrtRuntime } from '../../src/graph/runtime-ort.ts';
import { expectClose, tolerances } from '../tolerance.ts';
import { families, runLogits } from './families.ts';
import { ourAdapter, ourFolder } from './our-adapters.ts';

const runtime = await createOrtRuntime({ threads: 1 });
const adapted = families.filter(({ adapter }) => adapter !== null);

describe.each(adapted.map((fixture) => [fixture.name, fixture] as const))('%s', (_name, fixture) => {
  const folder = ourFolder(fixture);
  const ours = ourAdapter(fixture);

  test('our writer gives the bytes that PEFT read, and that PEFT saved again', async () => {
    const { savedAgainSha256 } = JSON.parse(await readFile(join(folder, 'expected.json'), 'utf8'));
    const target = await mkdtemp(join(tmpdir(), 'art-peft-'));
    try {
      await writeAdapterFiles(target, ours);
      for (const file of ['adapter_config.json', 'adapter_model.safetensors']) {
        const bytes = await readFile(join(target, file));
        expect(bytes.equals(await readFile(join(folder, file))), file).toBe(true);
        if (file.endsWith('.safetensors')) {
          expect(createHash('sha256').update(bytes).digest('hex')).toBe(savedAgainSha256);
        }
      }
    } finally {
      await rm(target, { recursive: true });
    }
  });

  test("logits with our adapter are PEFT's", async () => {
    const [logits] = await runLogits(runtime, fixture, { lora: ours.lora, parameters: ours.tensors });
    const expected = (await readSafetensors(join(folder, 'expected.safetensors'))).get('logits')!.data;
    expectClose(logits!, expected, tolerances.logits, 'logits');
    const base = fixture.tensors.get('logits/0')!.data;
    // The adapter does something: otherwise the test would pass without it.
    expect(Math.max(...expected.map((value, at) => Math.abs(value - base[at]!)))).toBeGreaterThan(0.1);
  });

  test("PEFT's adapter, written by us, reads back as it was", async () => {
    const theirs = await readAdapterFiles(join(fixture.folder, 'peft'));
    const target = await mkdtemp(join(tmpdir(), 'art-peft-'));
    try {
      await writeAdapterFiles(target, theirs);
      expect(await readAdapterFiles(target)).toEqual(theirs);
      const name = 'adapter_model.safetensors';
      const bytes = await readFile(join(target, name));
      expect(bytes.equals(await readFile(join(fixture.folder, 'peft', name)))).toBe(true);
    } finally {
      await rm(target, { recursive: true });
    }
  });
});
