/** Names of schemas in `/openapi.json`, where a route's own name would not do: most are shared by several routes. Layer 0. */
import type * as z from 'zod';
import { countTokensRequest, messagesRequest } from './anthropic.ts';
import {
  checkpointInfo,
  confirmationNeeded,
  forkRequest,
  forkResult,
  removedCheckpoints,
  retention,
  trashItem,
} from './checkpoints.ts';
import { completionRequest } from './completions.ts';
import { health } from './data.ts';
import { distillRequest } from './distill.ts';
import { errorBody } from './errors.ts';
import {
  anthropicMessage,
  chatCompletion,
  chatCompletionChunk,
  deletedResponse,
  healthz,
  responseObject,
  servedModel,
  servedModels,
  streamedEvent,
  textCompletion,
} from './inference-routes.ts';
import { job } from './jobs.ts';
import { chatCompletionRequest } from './openai.ts';
import { responsesRequest } from './responses.ts';
import { sftConversation, sftRequest } from './sft.ts';
import { runState } from './state.ts';
import {
  modelInfo,
  registerRequest,
  registrationPending,
  trainProgress,
  trainRequest,
  trainResult,
  wireGroup,
  wireTrajectory,
} from './training.ts';
import { anyJob, pullRequest, pushRequest, transferJob, transferProgress, transferResult } from './transfers.ts';

export const schemaNames: ReadonlyMap<z.ZodType, string> = new Map<z.ZodType, string>([
  [anthropicMessage, 'AnthropicMessage'],
  [chatCompletion, 'ChatCompletion'],
  [countTokensRequest, 'AnthropicCountTokensRequest'],
  [messagesRequest, 'AnthropicMessageRequest'],
  [chatCompletionChunk, 'ChatCompletionChunk'],
  [chatCompletionRequest, 'ChatCompletionRequest'],
  [completionRequest, 'CompletionRequest'],
  [textCompletion, 'TextCompletion'],
  [checkpointInfo, 'Checkpoint'],
  [confirmationNeeded, 'ConfirmationNeeded'],
  [deletedResponse, 'DeletedResponse'],
  [distillRequest, 'DistillRequest'],
  [errorBody, 'Error'],
  [forkRequest, 'ForkRequest'],
  [forkResult, 'ForkResult'],
  [health, 'Health'],
  [healthz, 'Healthz'],
  [anyJob, 'AnyJob'],
  [job, 'Job'],
  [pullRequest, 'PullRequest'],
  [pushRequest, 'PushRequest'],
  [transferJob, 'TransferJob'],
  [transferProgress, 'TransferProgress'],
  [transferResult, 'TransferResult'],
  [modelInfo, 'Model'],
  [registerRequest, 'RegisterRequest'],
  [registrationPending, 'RegistrationPending'],
  [removedCheckpoints, 'RemovedCheckpoints'],
  [streamedEvent, 'StreamedEvent'],
  [responseObject, 'Response'],
  [responsesRequest, 'ResponseRequest'],
  [retention, 'Retention'],
  [runState, 'State'],
  [servedModel, 'ServedModel'],
  [servedModels, 'ServedModels'],
  [sftConversation, 'Conversation'],
  [sftRequest, 'SftRequest'],
  [trainProgress, 'Progress'],
  [trainRequest, 'TrainRequest'],
  [trainResult, 'TrainResult'],
  [trashItem, 'TrashItem'],
  [wireGroup, 'TrajectoryGroup'],
  [wireTrajectory, 'Trajectory'],
]);
