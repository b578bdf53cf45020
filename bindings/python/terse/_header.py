"""Reads terse's C headers into ctypes: constants, enums, structs and the types of functions.

The headers that were installed with the library are its only declarations, so that the package cannot disagree with it. The parser knows the C that they
are written in, not C: what it does not understand is an error, never a guess.
"""
from __future__ import annotations

import ctypes
import re
from typing import Any

_BASE_TYPES: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_CONSTANT = re.compile(r"^#define (TERSE_[A-Z_]+) +(\w+)$", re.M)
_FUNCTION_POINTER = re.compile(r"^(.*?)\(\*(\w+)\)\s*\((.*)\)$", re.S)
_TYPE = re.compile(r"^((?:const\s+|enum\s+|struct\s+)*)(\w+)\s*(.*)$", re.S)


class Declarations:
    """The declarations of headers, by their C names."""

    def __init__(self) -> None:
        self.constants: dict[str, int] = {}
        self.enums: dict[str, dict[str, int]] = {}
        self.structs: dict[str, Any] = {}
        self.functions: dict[str, tuple[Any, list[Any]]] = {}

    def read(self, text: str) -> None:
        """Adds the declarations of a header's text."""
        text = _COMMENT.sub(" ", text)
        for name, value in _CONSTANT.findall(text):
            self.constants[name] = _LIMITS[value] if value in _LIMITS else int(value, 0)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        text = re.sub(r'extern "C" \{|TERSE_API', "", text)
        for declaration in _declarations(text):
            self._add(declaration)

    def _add(self, declaration: str) -> None:
        if match := re.match(r"^enum (\w+) \{(.*)\}$", declaration, re.S):
            self._add_enum(*match.groups())
        elif match := re.match(r"^struct (\w+) \{(.*)\}$", declaration, re.S):
            fields = [field for part in _declarations(match[2]) for field in self._fields(part)]
            self._struct(match[1])._fields_ = fields
        elif match := re.match(r"^struct (\w+)$", declaration):
            self._struct(match[1])
        elif match := re.match(r"^(.*?)\b(terse_\w+)\((.*)\)$", declaration, re.S):
            result = self._type(match[1].strip())
            self.functions[match[2]] = (result, self._parameters(match[3]))
        else:
            raise ValueError(f"the header has a declaration that is not understood: {declaration}")

    def _add_enum(self, name: str, body: str) -> None:
        values: dict[str, int] = {}
        following = 0
        for item in filter(None, (part.strip() for part in body.split(","))):
            constant, _, value = (part.strip() for part in item.partition("="))
            following = int(value, 0) if value else following
            values[constant] = following
            following += 1
        self.enums[name] = values
        self.constants.update(values)

    def _struct(self, name: str) -> Any:
        if name not in self.structs:
            self.structs[name] = type(name, (ctypes.Structure,), {})
        return self.structs[name]

    def _parameters(self, text: str) -> list[Any]:
        if text.strip() == "void":
            return []
        return [kind for part in _split(text) for _, kind in self._fields(part)]

    def _fields(self, text: str) -> list[tuple[str, Any]]:
        """Returns names and types of `const char *key_type, *value_type`, of `uint32_t a, b`, or of a pointer to a function."""
        if match := _FUNCTION_POINTER.match(text):
            return [(match[2], ctypes.CFUNCTYPE(self._type(match[1].strip()), *self._parameters(match[3])))]
        match = _TYPE.match(text)
        if not match:
            raise ValueError(f"the header has a type that is not understood: {text}")
        words, base, declarators = match.groups()
        return [self._declare(f"{words}{base}", part) for part in _split(declarators)]

    def _declare(self, base: str, declarator: str) -> tuple[str, Any]:
        match = re.match(r"^((?:\*\s*(?:const\s+)?)*)(\w+)(?:\[(\w+)\])?$", declarator.strip())
        if not match:
            raise ValueError(f"the header has a declarator that is not understood: {base} {declarator}")
        stars, name, length = match.groups()
        kind = self._type(f"{base} {stars}".strip())
        if not length:
            return name, kind
        return name, kind * (self.constants[length] if length in self.constants else int(length))

    def _type(self, text: str) -> Any:
        """Returns the ctypes type of `const struct terse_model *`.

        A string that C reads is bytes (c_char_p). One that C returns or writes is an address (c_void_p), since its length may stand elsewhere or its
        memory may have to be released.
        """
        stars = text.count("*")
        base = re.sub(r"[*]|\bconst\b", " ", text).split()
        if base[0] == "struct":
            kind = self._struct(base[1])
        elif base[0] == "enum":
            kind = ctypes.c_int
        else:
            kind = _BASE_TYPES[base[0]]
        if stars and kind is None:
            kind, stars = ctypes.c_void_p, stars - 1
        elif stars and kind is ctypes.c_char:
            read = re.search(r"\*\s*const\b", text) if stars == 2 else "const" in text
            kind, stars = ctypes.c_char_p if read else ctypes.c_void_p, stars - 1
        for _ in range(stars):
            kind = ctypes.POINTER(kind)
        return kind


_LIMITS = {"UINT32_MAX": 2**32 - 1, "UINT64_MAX": 2**64 - 1}


def _declarations(text: str) -> list[str]:
    """Cuts a text at the semicolons that stand outside of braces."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == ";" and depth == 0:
            found.append(re.sub(r"\s+", " ", text[start:at]).strip())
            start = at + 1
    return found


def _split(text: str) -> list[str]:
    """Cuts a text at the commas that stand outside of parentheses."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text + ","):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    return found
