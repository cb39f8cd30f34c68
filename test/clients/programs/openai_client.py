"""The official Python client: chat completions with tools, whole and streamed, and responses."""
import json
import sys

import openai

root = sys.argv[1]
client = openai.OpenAI(base_url=f"{root}/rollouts/python/v1", api_key="none", max_retries=0)
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
messages = [{"role": "user", "content": "How is the weather in Paris?"}]

first = client.chat.completions.create(model="agent", messages=messages, tools=tools).choices[0]
assert first.finish_reason == "tool_calls", first
call = first.message.tool_calls[0]
assert json.loads(call.function.arguments) == {"city": "Paris"}
messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny in Paris"}]
second = client.chat.completions.create(model="agent", messages=messages, tools=tools).choices[0]
assert second.message.content == "It is sunny in Paris.", second

chunks = client.chat.completions.create(model="agent", messages=messages, tools=tools, stream=True)
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == "It is sunny in Paris.", text
assert client.responses.create(model="agent", input="Hello").output_text == "Hello there."
try:
    client.chat.completions.create(model="agent", messages=messages, extra_body={"magic": 1})
    raise AssertionError("an unknown field must be refused")
except openai.BadRequestError as error:
    assert "magic" in str(error)
