"""LiteLLM, with the server as an OpenAI-compatible provider and as Anthropic's."""
import json
import sys

import litellm

root = sys.argv[1]
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": schema}}]
providers = [
    ("openai/agent", f"{root}/rollouts/litellm-openai/v1"),
    ("anthropic/agent", f"{root}/rollouts/litellm-anthropic"),
]
for model, base in providers:
    settings = {"model": model, "api_base": base, "api_key": "none", "tools": tools, "num_retries": 0}
    messages = [{"role": "user", "content": "How is the weather in Paris?"}]
    first = litellm.completion(messages=messages, max_tokens=200, **settings).choices[0]
    assert first.finish_reason == "tool_calls", first
    call = first.message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [first.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny in Paris"}]
    second = litellm.completion(messages=messages, max_tokens=200, **settings).choices[0]
    assert second.message.content == "It is sunny in Paris.", second
    chunks = litellm.completion(messages=messages, max_tokens=200, stream=True, **settings)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "It is sunny in Paris.", text
