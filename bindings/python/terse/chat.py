"""Conversations: which tokens of one a session has not read yet, and the reply to it."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

from .model import Message

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from .session import Session


def is_conversation(prompt: Any) -> TypeGuard[Sequence[Message]]:
    """Returns whether a prompt is messages, not text or tokens."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], dict)


def read(session: Session, messages: Sequence[Message], progress: Callable[[float], object] | None) -> None:
    """Reads a conversation up to the content of its last message."""
    after = _held(session, messages)
    following: list[Message] = [*messages, {"role": "user", "content": "-"}]
    tokens = session.model.chat_tokens(following, after=after)
    behind = session.model.chat_tokens(following, after=len(messages))
    _read(session, messages, tokens[: len(tokens) - len(behind)], progress)


def reply(session: Session, messages: Sequence[Message], format: str | None, max_tokens: int | None, stop: str | Sequence[str] | None) -> Iterator[str]:
    """Reads what the session has not read of a conversation, now; returns the pieces of the reply."""
    tokens = session.model.chat_tokens(messages, after=_held(session, messages), format=format)
    _read(session, messages, tokens)
    return _written(session, max_tokens, stop)


def _held(session: Session, messages: Sequence[Message]) -> int:
    """Returns how many of the messages the session holds, after it has forgotten a conversation that begins otherwise."""
    held = session.messages
    if not held and len(session):
        raise ValueError("the session holds text that is not a conversation: reset() forgets it; after load set .messages to the conversation that it holds")
    if list(messages[: len(held)]) != held:
        session.reset()
    return len(session.messages)


def _read(session: Session, messages: Sequence[Message], tokens: Any, progress: Callable[[float], object] | None = None) -> None:
    """Reads tokens; where an interrupt comes when they are read, the session holds the messages all the same."""
    length = len(session)
    try:
        if len(tokens):
            session._read(tokens, progress=progress)
    finally:
        if len(session) == length + len(tokens):
            session.messages = list(messages)


def _written(session: Session, max_tokens: int | None, stop: str | Sequence[str] | None) -> Iterator[str]:
    """Yields the reply, and keeps in session.messages what was written of it."""
    before = session.messages
    goes_on = before[-1]["role"] == "assistant"
    written = before[-1]["content"] if goes_on else ""
    earlier = before[:-1] if goes_on else before
    for piece in session._write(max_tokens, stop):
        written += piece
        session.messages = [*earlier, {"role": "assistant", "content": written}]
        yield piece
    session.messages = [*earlier, {"role": "assistant", "content": written}]
