"""Conversations: which tokens of one a session has not read yet, and the reply to it."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

from . import tools as calling
from .model import Message, Tool, chat_options

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from .session import Session


def is_conversation(prompt: Any) -> TypeGuard[Sequence[Message]]:
    """Returns whether a prompt is messages, not text or tokens."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], dict)


def read(session: Session, messages: Sequence[Message], progress: Callable[[float], object] | None) -> None:
    """Reads a conversation up to the content of its last message."""
    after = _held(session, messages, None)
    following: list[Message] = [*messages, {"role": "user", "content": "-"}]
    tokens = session.model.chat_tokens(following, after=after)
    behind = session.model.chat_tokens(following, after=len(messages))
    _read(session, messages, None, tokens[: len(tokens) - len(behind)], progress)


def reply(session: Session, messages: Sequence[Message], tools: Sequence[Tool] | None, format: str | None, max_tokens: int | None,
          stop: str | Sequence[str] | None) -> Iterator[str]:
    """Reads what the session has not read of a conversation, now; returns the pieces of the reply."""
    tokens = session.model.chat_tokens(messages, after=_held(session, messages, tools), format=format, tools=tools)
    _read(session, messages, tools, tokens)
    return _written(session, max_tokens, stop)


def reply_with_calls(session: Session, messages: Sequence[Message], tools: Sequence[Tool], format: str | None, max_tokens: int | None,
                     stop: str | Sequence[str] | None) -> Iterator[calling.Piece]:
    """Does the same for a reply that may call tools, whose calls are held to them; returns its text and its calls."""
    options = chat_options([], format, True, tools)
    reader = calling.Reader(session.model, options)
    tokens = session.model.chat_tokens(messages, after=_held(session, messages, tools), format=format, tools=tools)
    _read(session, messages, tools, tokens)
    return find_calls(session, reader, _written(session, max_tokens, stop, options))


def find_calls(session: Session, reader: calling.Reader, pieces: Iterator[str]) -> Iterator[calling.Piece]:
    """Yields the text and the calls of a reply; at its end session.messages has it as a message with its calls."""
    text, calls = _begun(session.messages) or "", []
    for piece in calling.find(reader, pieces):
        if isinstance(piece, calling.ToolCall):
            calls.append(piece)
        else:
            text += piece
        yield piece
    session.messages = [*session.messages[:-1], calling.message(text, calls, reader.thoughts)]


def whole_reply(session: Session, pieces: Iterator[calling.Piece]) -> calling.Reply:
    """Returns a reply when all of it is written."""
    found = list(pieces)
    text = "".join([piece for piece in found if isinstance(piece, str)])
    calls = [piece for piece in found if isinstance(piece, calling.ToolCall)]
    message = session.messages[-1]
    return calling.Reply(text, calls, message, message.get("reasoning_content", ""))


def _begun(messages: Sequence[Message]) -> str | None:
    """Returns what the last message says where it is the assistant's, which goes on unless it has tool calls; None: a reply begins behind it."""
    last = messages[-1]
    return last["content"] if last["role"] == "assistant" and not last.get("tool_calls") else None


def _held(session: Session, messages: Sequence[Message], tools: Sequence[Tool] | None) -> int:
    """Returns how many of the messages the session holds, after it has forgotten a conversation that begins otherwise."""
    held = session.messages
    if not held and len(session):
        raise ValueError("the session holds text that is not a conversation: reset() forgets it; after load set .messages to the conversation that it holds")
    if list(messages[: len(held)]) != held or list(tools or []) != session.tools:
        session.reset()
    return len(session.messages)


def _read(session: Session, messages: Sequence[Message], tools: Sequence[Tool] | None, tokens: Any,
          progress: Callable[[float], object] | None = None) -> None:
    """Reads tokens; where an interrupt comes when they are read, the session holds the messages all the same."""
    length = len(session)
    try:
        if len(tokens):
            session._read(tokens, progress=progress)
    finally:
        if len(session) == length + len(tokens):
            session.messages, session.tools = list(messages), list(tools or [])


def _written(session: Session, max_tokens: int | None, stop: str | Sequence[str] | None, options: Any = None) -> Iterator[str]:
    """Yields the reply, and keeps in session.messages what was written of it. `options`: of a conversation with tools."""
    before = session.messages
    begun = _begun(before)
    written = begun or ""
    earlier = before if begun is None else before[:-1]
    for piece in session._write(max_tokens, stop, options):
        written += piece
        session.messages = [*earlier, {"role": "assistant", "content": written}]
        yield piece
    session.messages = [*earlier, {"role": "assistant", "content": written}]
