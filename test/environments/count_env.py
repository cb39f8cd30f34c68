"""An environment of the real OpenEnv: count from a start to a target. Prints its address; ends with its standard input."""
import socket
import sys
import threading

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class CountAction(Action):
    add: int


class CountObservation(Observation):
    count: int
    target: int


class CountEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._count = 0
        self._target = 3
        self._state = State(step_count=0)

    def _observe(self, reward):
        return CountObservation(count=self._count, target=self._target, reward=reward, done=self._count >= self._target)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._count = seed or 0
        self._state = State(episode_id=episode_id, step_count=0)
        return self._observe(None)

    def step(self, action, timeout_s=None, **kwargs):
        if action.add < 0:
            raise ValueError("add must not be negative")
        self._count += action.add
        self._state.step_count += 1
        return self._observe(1.0 if self._count == self._target else 0.25)

    @property
    def state(self):
        return self._state


app = create_app(CountEnvironment, CountAction, CountObservation, max_concurrent_envs=64)
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
threading.Thread(target=lambda: (sys.stdin.read(), setattr(server, "should_exit", True)), daemon=True).start()
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
server.run(sockets=[listener])
