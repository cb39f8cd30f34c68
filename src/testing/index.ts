/** Public entry `agent-reinforcement-trainer/testing`: scripted fakes for tests of code that uses this package. */
export {
  createScriptedEngine,
  type ScriptedEngine,
  type ScriptedEngineOptions,
  type ScriptedReply,
} from './scripted-engine.ts';
