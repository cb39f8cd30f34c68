/** `art audit`: the log of all changes, read and checked. Layer 6. No server is needed. */
import { Command } from 'commander';
import { verifyAudit } from '../server/security/audit.ts';

interface VerifyOptions {
  readonly path: string;
  readonly expect?: string;
}

export function createAuditCommand(): Command {
  return new Command('audit').description('The log of every change: audit.jsonl.').addCommand(
    new Command('verify')
      .description('Check that no line was changed, removed or put in, and print the last hash, to be kept elsewhere.')
      .option('--path <directory>', 'folder of all runs', '.art')
      .option('--expect <sha256>', 'a last hash printed earlier: the log must still hold that line')
      .action(async ({ path, expect }: VerifyOptions) => {
        const { lines, lastHash } = await verifyAudit(path, expect);
        console.log(`${lines} changes, unbroken; last hash ${lastHash}`);
      }),
  );
}
