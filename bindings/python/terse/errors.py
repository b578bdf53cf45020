"""Exceptions: each status of the library that is a failure is a class, which is also the builtin exception that fits."""
from __future__ import annotations


class Error(Exception):
    """A failure in the library. Its text is the library's message: what is wrong, where, and what to do about it.

    Attributes:
        offset: the byte in the file that the message speaks of, or None.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class ArgumentError(Error, ValueError):
    """An argument is out of range or contradicts another."""


class FileError(Error, OSError):
    """A file could not be opened, read or written."""


class FormatError(Error, ValueError):
    """A file is not what it claims to be: truncated, inconsistent, hostile."""


class UnsupportedError(Error, NotImplementedError):
    """A well-formed file, or a method, asks for what terse cannot do."""


class OutOfMemoryError(Error, MemoryError):
    """The system refused memory, or the model's kv_budget is spent."""


class ContextError(Error, ValueError):
    """The text has more tokens than the session's context holds."""


class CancelledError(Error):
    """Session.cancel, called on another thread, stopped the work."""


BY_STATUS = {
    "TERSE_E_ARGUMENT": ArgumentError,
    "TERSE_E_IO": FileError,
    "TERSE_E_FORMAT": FormatError,
    "TERSE_E_UNSUPPORTED": UnsupportedError,
    "TERSE_E_MEMORY": OutOfMemoryError,
    "TERSE_E_CONTEXT": ContextError,
    "TERSE_E_INTERRUPTED": CancelledError,
}
