/** Public entry `agent-reinforcement-trainer/mcp`: train an agent on the tools of any MCP server. Needs `@modelcontextprotocol/sdk`. */
export { type McpRolloutOptions, mcpRollout } from './mcp-rollout.ts';
export {
  connectMcp,
  type McpCallOptions,
  type McpOptions,
  type McpResource,
  type McpServer,
  McpSession,
  type McpTool,
  type McpToolResult,
} from './mcp-session.ts';
export { type GenerateScenariosOptions, generateScenarios, type McpScenario, splitScenarios } from './scenarios.ts';
