/** Public entry `agent-reinforcement-trainer/parquet`: what runs stored, as rows, and as Parquet files that DuckDB, Polars and pandas read. */
export { readTrajectories, writeTrajectories } from './parquet-file.ts';
export {
  type FetchTrajectoriesOptions,
  fetchTrajectories,
  type LoadTrajectoriesOptions,
  loadTrajectories,
  type TrajectoryFilter,
} from './run-trajectories.ts';
export {
  completionTokens,
  type GroupRow,
  messagesOf,
  type Row,
  type RowEntry,
  type RowHistory,
  type RowPlace,
  type SampledTokens,
  type TrajectoryRow,
  toRows,
  toTrajectoryGroups,
} from './trajectory-row.ts';
