"""Batches: decoding steps of several sessions together, and texts that are generated so."""
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np

from . import _library
from ._library import c, structs

if TYPE_CHECKING:
    from .model import Model
    from .session import Session
    from .writer import Writer


def step(model: Model, tokens: Mapping[Session, Any]) -> None:
    """Appends tokens to the sessions in one step; all of them or, after a failure, none."""
    from .model import pointer_to

    arrays = [np.ascontiguousarray(some, np.int32) for some in tokens.values()]
    with contextlib.ExitStack() as stack:
        items = (structs["terse_step_item"] * len(arrays))()
        for item, session, array in zip(items, tokens, arrays):
            item.session, item.tokens, item.n = session._pointer, pointer_to(array), len(array)
        stack.enter_context(model._engine.held())
        _library.call(c.terse_engine_step, model._engine.pointer, items, len(items))
    for session in tokens:
        session.messages = []


def generate(model: Model, prompts: Sequence[Any], kv: Any, context: int | None, max_tokens: int | None, stop: Any, sampling: Any) -> list[str]:
    """Generates all texts together: a step writes one token of each text that goes on. Prompts are read before, one after another."""
    from .writer import Writer

    writing: list[tuple[Session, Writer]] = []
    texts = [""] * len(prompts)
    for prompt in prompts:
        session = model.session(kv, context=context)
        session.set_sampling(**sampling)
        _read(session, prompt)
        writing.append((session, Writer(model, max_tokens, stop)))
    while any(writer.finish_reason is None for _, writer in writing):
        tokens: dict[Session, list[int]] = {}
        for i, (session, writer) in enumerate(writing):
            if writer.finish_reason is not None:
                continue
            token = session.sample() if writer.wants_token() else None
            texts[i] += writer.take(token)
            if token is not None and writer.appends and writer.finish_reason is None:
                tokens[session] = [token]
        if tokens:
            _step_what_fits(model, tokens, {session: writer for session, writer in writing})
    return [text + writer.finish() for text, (_, writer) in zip(texts, writing)]


def _read(session: Session, prompt: Any) -> None:
    from . import chat

    if chat.is_conversation(prompt):
        session._read(session.model.chat_tokens(prompt))
    else:
        session.prefill(prompt)


def _step_what_fits(model: Model, tokens: dict[Session, list[int]], writers: Mapping[Session, Writer]) -> None:
    """Takes the step without sessions whose context is full; their texts end."""
    for session in list(tokens):
        if len(session) + 1 > session.context:
            writers[session].finish_reason = "length"
            del tokens[session]
    if tokens:
        step(model, tokens)


