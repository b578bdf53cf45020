"""Loads libterse and gives its functions the types that its headers declare. Owns how C strings, failures and C objects become Python's."""
from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any, Callable

from . import errors
from ._header import Declarations

FOLDER = Path(__file__).parent / "_lib"  # the library, its headers, and the built-in model with its profile
BUILT_IN_MODEL = FOLDER / "lab-27m-q8_0.gguf"
BUILT_IN_PROFILE = FOLDER / "lab-27m.terse.gguf"

declared = Declarations()
for _name in ("terse.h", "terse_calibrate.h", "terse_choice.h"):
    declared.read((FOLDER / _name).read_text(encoding="utf-8"))
constants = declared.constants
structs = declared.structs
c: Any = ctypes.CDLL(str(FOLDER / "libterse.so"))  # calls release the GIL


def _give_types() -> None:
    for name, (result, parameters) in declared.functions.items():
        function = getattr(c, name)
        function.argtypes = parameters
        function.restype = ctypes.c_void_p if result is ctypes.c_char_p else result


_give_types()
_ERRORS = {code: errors.BY_STATUS[name] for name, code in declared.enums["terse_status"].items() if name != "TERSE_OK"}


def pointer_type(name: str) -> Any:
    """Returns the type of pointers to a struct of the headers."""
    return ctypes.POINTER(structs[name])


def call(function: Any, *arguments: Any) -> None:
    """Calls a function whose last argument is a struct terse_error; raises what it describes."""
    error = structs["terse_error"]()
    status = function(*arguments, ctypes.byref(error))
    if status:
        raise failure(status, error)


def failure(status: int, error: Any) -> errors.Error:
    """Returns the exception of a status and the struct terse_error that describes it."""
    offset = None if error.offset == constants["TERSE_NO_OFFSET"] else error.offset
    return _ERRORS[status](error.message.decode("utf-8", "replace"), offset)


def text_at(address: int | None, n_bytes: int = -1) -> str:
    """Returns the text at an address: of so many bytes, or up to its end."""
    return ctypes.string_at(address, n_bytes).decode("utf-8", "replace") if address else ""


class Handle:
    """Owns a C object, which is released when neither the handle nor one that keeps it is there any more.

    Users are counted: references alone would not do, since the garbage collector finalizes the objects of a cycle in any order, an engine before its
    sessions.

    Args:
        release: releases the C object.
        keeps: handles of objects that must live as long.
        through: runs the release; None: at once.
    """

    def __init__(self, pointer: Any, release: Callable[[Any], object], *keeps: Handle, through: Callable[[Callable[[], None]], None] | None = None) -> None:
        self.pointer = pointer
        self._object: _Object = _Object(pointer, release, [handle._object for handle in keeps], through)

    def __del__(self) -> None:
        self._object.drop()


class _Object:
    _counting = threading.RLock()

    def __init__(self, pointer: Any, release: Callable[[Any], object], keeps: list[_Object], through: Callable[[Callable[[], None]], None] | None) -> None:
        self._pointer, self._release, self._keeps, self._through = pointer, release, keeps, through
        self._users = 1
        with self._counting:
            for kept in keeps:
                kept._users += 1

    def drop(self) -> None:
        with self._counting:
            self._users -= 1
            last = self._users == 0
        if not last:
            return
        if self._through:
            self._through(self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        self._release(self._pointer)
        for kept in self._keeps:
            kept.drop()


def version() -> str:
    """Returns the library's version, "0.1.0"."""
    return text_at(c.terse_version())


def cpu_name() -> str:
    """Returns the kernels' instruction set: "scalar", "avx2", "avxvnni", "avx512" or "neon"."""
    return text_at(c.terse_cpu_name())
