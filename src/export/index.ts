/** Public entry `agent-reinforcement-trainer/export`: trained policies as files for other programs. Layer 5. */
export {
  type ExportDtype,
  type ExportFormat,
  type ExportOptions,
  type ExportResult,
  exportPolicy,
} from './export-policy.ts';
export type { PolicySource } from './find-policy.ts';
