/** Adapters that this package writes for the fixtures of each family; `test/fixtures/generate/peft_reads_ours.py` gives them to PEFT. */
import { join } from 'node:path';
import { type AdapterFiles, writeAdapterFiles } from '../../src/formats/peft.ts';
import { type LoraSpec, loraSpec } from '../../src/nn/lora.ts';
import { randomAdapter } from '../tiny-model.ts';
import { type FamilyFixture, families } from './families.ts';

/** Folder of the fixture with what `writeOurAdapters` wrote and what PEFT made of it. */
export const ourFolder = (fixture: FamilyFixture): string => join(fixture.folder, 'ours');

/** An adapter on every linear module, both matrices random. */
export function ourAdapter({ name, config }: FamilyFixture): AdapterFiles & { readonly lora: LoraSpec } {
  const lora = loraSpec({ rank: 3, alpha: 5 }, config);
  return { lora, config: lora, tensors: randomAdapter(config, lora, 7), baseModel: `tiny-${name}` };
}

export async function writeOurAdapters(): Promise<void> {
  for (const fixture of families) {
    if (fixture.adapter !== null) await writeAdapterFiles(ourFolder(fixture), ourAdapter(fixture));
  }
}
