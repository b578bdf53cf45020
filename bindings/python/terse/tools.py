"""Tools: what a chat's reply says and calls, and how calls are found in it as it is written."""
from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Sequence, Union

from . import _library
from ._library import Handle, c, call, structs, text_at
from .model import Message, Model


@dataclass(frozen=True)
class ToolCall:
    """What the assistant says to have a tool run.

    Attributes:
        name: the function's name. One of the tools'.
        arguments: the function's arguments by their names. They keep to the schema of the tool's parameters, as far as it is understood.
    """

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """A reply to a conversation with tools.

    Attributes:
        text: what the reply says beside its calls.
        calls: the tool calls, in order; none where the reply is text.
        thoughts: what the model thought before it said and called that.
        message: the reply as a message, to go on with the conversation: append it, then {"role": "tool", "content": RESULT} for each call.
    """

    text: str
    calls: list[ToolCall]
    message: Message
    thoughts: str = ""


Piece = Union[str, ToolCall]


def find(reader: Reader, pieces: Iterable[str]) -> Iterator[Piece]:
    """Yields the text of a reply beside its calls, and each call as soon as it is whole."""
    for piece in pieces:
        yield from reader.push(piece)
    yield from reader.finish()


def message(text: str, calls: Sequence[ToolCall], thoughts: str = "") -> Message:
    """Returns a reply as a message of OpenAI's form."""
    functions = [{"name": made.name, "arguments": json.dumps(made.arguments, ensure_ascii=False)} for made in calls]
    entries = [{"type": "function", "function": function} for function in functions]
    made: dict[str, Any] = {"role": "assistant", "content": text, **({"tool_calls": entries} if entries else {})}
    if thoughts:
        made["reasoning_content"] = thoughts
    return made


class Reader:
    """Takes a reply apart whose text comes in pieces (terse_reply_reader)."""

    def __init__(self, model: Model, options: Any) -> None:
        pointer = _library.pointer_type("terse_reply_reader")()
        call(c.terse_reply_reader_new, model._handle.pointer, ctypes.byref(options), ctypes.byref(pointer))
        self._handle = Handle(pointer, c.terse_reply_reader_free)
        self._found = 0
        self.thoughts = ""

    def push(self, text: str) -> Iterator[Piece]:
        data = text.encode()
        return self._take(c.terse_reply_reader_push, data, len(data))

    def finish(self) -> Iterator[Piece]:
        return self._take(c.terse_reply_reader_finish)

    def _take(self, function: Any, *arguments: Any) -> Iterator[Piece]:
        piece, n = structs["terse_reply_piece"](), ctypes.c_size_t()
        call(function, self._handle.pointer, *arguments, ctypes.byref(piece))
        self.thoughts += text_at(piece.thoughts, piece.n_thoughts)
        if text := text_at(piece.text, piece.n_text):
            yield text
        calls = c.terse_reply_reader_calls(self._handle.pointer, ctypes.byref(n))
        found = [ToolCall(text_at(calls[i].name), json.loads(text_at(calls[i].arguments))) for i in range(self._found, n.value)]
        self._found = n.value
        yield from found
