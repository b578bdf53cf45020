"""Answers a question with tools that the model may call: ChatML models whose template has tools, such as Qwen 2.5, can.

    python call_tools.py "Which day of the week was 20 July 1969?" qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
"""
from __future__ import annotations

import datetime
import sys
from typing import Any

import terse

TOOLS = [{
    "type": "function",
    "function": {
        "name": "weekday",
        "description": "Tells the day of the week of a date.",
        "parameters": {"type": "object", "properties": {"date": {"type": "string", "description": "YYYY-MM-DD"}}, "required": ["date"]},
    },
}]


def run(call: terse.ToolCall) -> str:
    """Runs a call. What goes wrong is told to the model, which may have made up the name or the arguments."""
    try:
        if call.name != "weekday":
            return f"there is no tool {call.name}"
        return datetime.date.fromisoformat(call.arguments["date"]).strftime("%A")
    except (KeyError, TypeError, ValueError) as error:
        return f"the call failed: {error!r}"


def main(question: str, model_path: str | None = None, format: str | None = None) -> str:
    session = terse.Model(model_path).session()
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(4):  # replies, so that a model that only calls comes to an end
        reply = session.chat(messages, tools=TOOLS, format=format, max_tokens=200, temperature=0)
        messages.append(reply.message)
        for call in reply.calls:
            print(f"{call.name}({call.arguments}) = {run(call)}")
            messages.append({"role": "tool", "content": run(call)})
        if not reply.calls:
            break
    print(reply.text)
    return reply.text


if __name__ == "__main__":
    main(*sys.argv[1:])
