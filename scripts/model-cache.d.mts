export type RealModel = 'smollm2';

export interface ModelSource {
  readonly title: string;
  readonly file: string;
  readonly package: string;
  readonly version: string;
  readonly member: string;
  readonly sha256: string;
}

export const models: Readonly<Record<RealModel, ModelSource>>;
export function modelCacheFolder(): string;
export function cachedModel(name: RealModel): string | null;
