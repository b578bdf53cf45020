"""Turns the tokens that a session samples into text, and knows where the text ends."""
from __future__ import annotations

import ctypes
from typing import Any, Sequence

from . import _library
from ._library import Handle, c, call, text_at
from .model import Detokenizer, Model


class Writer:
    """The text of one reply.

    Attributes:
        finish_reason: "stop": the text's own end or a stop string; "length": max_tokens, or a full context, as its user says; None: it goes on.
        appends: whether the token that was taken last belongs to the sequence.
    """

    def __init__(self, model: Model, max_tokens: int | None, stop: str | Sequence[str] | None, options: Any = None) -> None:
        strings = [stop] if isinstance(stop, str) else list(stop or [])
        self._model = model
        self._detokenizer = Detokenizer(model, reply=options)
        self._stop = _Stop(strings) if strings else None
        self._left = max_tokens
        self.finish_reason: str | None = None
        self.appends = False

    def wants_token(self) -> bool:
        """Returns whether a token may follow; take(None) ends the text otherwise."""
        return self._left is None or self._left > 0

    def take(self, token: int | None) -> str:
        """Takes the next token; returns the text that it completes."""
        self.appends = False
        if token is None:
            self.finish_reason = "length"
            return ""
        if self._model.token_ends(token):
            self.finish_reason = "stop"
            return ""
        if self._left is not None:
            self._left -= 1
        self.appends = True
        return self._show(self._detokenizer.push(token))

    def finish(self) -> str:
        """Returns the text that was held back: of an unfinished character, or what might have begun a stop string."""
        stopped = self._stop is not None and self._stop.stopped
        rest = "" if stopped else self._show(self._detokenizer.finish())
        return rest + (self._stop.finish() if self._stop and not self._stop.stopped else "")

    def _show(self, text: str) -> str:
        if self._stop is None:
            return text
        shown = self._stop.push(text)
        if self._stop.stopped:
            self.finish_reason = "stop"
        return shown


class _Stop:
    """Ends a text before the first of some strings, which may lie across tokens."""

    def __init__(self, strings: Sequence[str]) -> None:
        pointer = _library.pointer_type("terse_stop")()
        made = (ctypes.c_char_p * len(strings))(*[string.encode() for string in strings])
        call(c.terse_stop_new, made, len(strings), ctypes.byref(pointer))
        self._handle = Handle(pointer, c.terse_stop_free)
        self.stopped = False

    def push(self, text: str) -> str:
        data = text.encode()
        out, n, stopped = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_bool()
        call(c.terse_stop_push, self._handle.pointer, data, len(data), ctypes.byref(out), ctypes.byref(n), ctypes.byref(stopped))
        self.stopped = stopped.value
        return text_at(out.value, n.value)

    def finish(self) -> str:
        n: Any = ctypes.c_size_t()
        return text_at(c.terse_stop_finish(self._handle.pointer, ctypes.byref(n)), n.value)
