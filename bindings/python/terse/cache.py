"""Says how a KV cache is kept: its options, what it takes, the codebook that it needs, and the method that kv="auto" chooses.

What a model's rates cost and which codebooks are kept is shared with the command `terse`: the same files in the user's cache directory, the same choice.
"""
from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Union

from . import _library
from ._library import Handle, c, call, constants, structs

if TYPE_CHECKING:
    from .model import Model

METHOD_DEFAULT = "terse-4"  # where no measured costs guide the choice
MOST_DIVERGENCE = 0.005  # nats that "auto" allows
EXACT_RATE = 8  # bits that stand for more than any that are measured


@dataclass(frozen=True)
class Cache:
    """How a KV cache is kept. A name such as "q8_0" stands for Cache("q8_0").

    Attributes:
        method: "f16", "q8_0", "q4_0", "kivi-2", "terse-N", "antkv-1", "streaming-512" and others (terse.methods).
        key_type, value_type: codecs instead of the method's: "f16", "q8_0", "q4_0", "kivi-4", "kivi-2", "terse-N".
        tail_tokens: newest tokens that stay exact, at least; None: the method's number.
        anchors: tokens of a prompt that stay exact: a number (int), or a part of them in per cent (float); None: the method's.
        read: tokens of a prompt that a step reads, in the same way; None: the method's.
        evict: the method whose choice of tokens is combined with this one's codecs: "mat-1024", "snapkv-1024", "streaming-512".
    """

    method: str = "f16"
    key_type: str | None = None
    value_type: str | None = None
    tail_tokens: int | None = None
    anchors: int | float | None = None
    read: int | float | None = None
    evict: str | None = None

    def _options(self, codebook: Codebook | None = None) -> ctypes.Structure:
        options = c.terse_cache_options_defaults()
        options.method = self.method.encode()
        options.key_type = self.key_type and self.key_type.encode()
        options.value_type = self.value_type and self.value_type.encode()
        options.evict = self.evict and self.evict.encode()
        if self.tail_tokens is not None:
            options.tail_tokens = self.tail_tokens
        for name, amount in (("anchor", self.anchors), ("read", self.read)):
            if isinstance(amount, int):
                setattr(options, f"{name}_percent", 0)
                setattr(options, f"{name}_count", amount)
            elif amount is not None:
                setattr(options, f"{name}_percent", amount)
        if codebook is not None:
            options.codebook = codebook._handle.pointer
        return options


Kv = Union[str, Cache]


@dataclass(frozen=True)
class CacheReport:
    """What a cache takes, in bytes unless said otherwise. resident = codes + exact + window + tables.

    Attributes:
        tokens: tokens that the sequence has seen.
        kept: tokens that are still readable.
        resident: all bytes of keys and values.
        codes: pages of codes; `shared` of them lie in other sessions too (forks).
        exact, window, tables: exact tokens, the recent window, page tables and the policy's state.
        codebook: memory of the codebook, beside `resident`.
        bits_per_value: resident * 8 / (values of all tokens seen).
    """

    tokens: int
    kept: int
    resident: int
    codes: int
    shared: int
    exact: int
    window: int
    tables: int
    codebook: int
    bits_per_value: float

    @classmethod
    def _of(cls, report: ctypes.Structure) -> CacheReport:
        return cls(**{name: getattr(report, name) for name, *_ in report._fields_})


@dataclass(frozen=True)
class Method:
    """A method of the library. `name` is a pattern such as "streaming-N"; `learns`: it takes a codebook, which all but terse-N need."""

    name: str
    summary: str
    learns: bool


def methods() -> list[Method]:
    """Returns the methods that the library knows."""
    found: list[Method] = []
    info = structs["terse_method_info"]()
    while c.terse_method_describe(len(found), ctypes.byref(info)):
        found.append(Method(info.name.decode(), info.summary.decode(), info.learns))
    return found


# ---- Codebooks


class Codebook:
    """What a method has learned about a model (the file that `terse calibrate` writes). Immutable; sessions share it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        pointer = _library.pointer_type("terse_codebook")()
        call(c.terse_codebook_load, os.fsencode(path), ctypes.byref(pointer))
        self._handle = Handle(pointer, c.terse_codebook_free)

    def _info(self) -> ctypes.Structure:
        info = structs["terse_codebook_info"]()
        c.terse_codebook_describe(self._handle.pointer, ctypes.byref(info))
        return info

    @property
    def method(self) -> str:
        """The method that it was learned for: "antkv-1", or "terse", a profile, which serves every terse-N."""
        return self._info().method.decode()

    @property
    def costs(self) -> list[tuple[float, float]]:
        """Of a profile: bits of terse-N and the mean KL divergence from f16 in nats that was measured, from the most bits to the fewest."""
        info = self._info()
        return [(info.costs[i].bits, info.costs[i].divergence) for i in range(info.n_costs)]

    def _is_for(self, name: str, model: Model) -> bool:
        info = self._info()
        return info.method.decode() == name and info.of_norms and info.fingerprint == model.info.norms_fingerprint


def _needed(cache: Cache) -> str:
    """Returns the name of the codebook that such a cache takes, or ""."""
    name = ctypes.create_string_buffer(64)
    call(c.terse_cache_codebook, ctypes.byref(cache._options()), name, len(name))
    return name.value.decode()


def _cache_folder() -> Path:
    own = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(own) if own.startswith("/") else Path.home() / ".cache") / "terse"


def find_codebook(model: Model, cache: Cache, given: Codebook | str | os.PathLike[str] | None) -> Codebook | None:
    """Returns the codebook for a cache: the given one ("none": none), the one that the command `terse` has kept, or the built-in model's profile."""
    if isinstance(given, Codebook):
        return given
    name = _needed(cache)
    if not name or given == "none":
        return None
    if given is not None:
        return Codebook(given)
    for path in (_cache_folder() / f"{name}-{model.info.norms_fingerprint:016x}.gguf", _library.BUILT_IN_PROFILE):
        if path.exists():
            codebook = Codebook(path)
            if codebook._is_for(name, model):
                return codebook
    return None


# ---- What a cache takes, and kv="auto"


def cache_bytes(model: Model, cache: Cache, codebook: Codebook | None, tokens: int) -> CacheReport:
    """Returns what a cache of so many tokens will take on the model's device, before anything is allocated."""
    report = structs["terse_cache_report"]()
    device = model.device.encode()
    call(c.terse_cache_bytes, model._handle.pointer, device, ctypes.byref(cache._options(codebook)), tokens, ctypes.byref(report))
    return CacheReport._of(report)


def choose(model: Model, kv: Kv, codebook: Codebook | str | os.PathLike[str] | None, context: int) -> tuple[Cache, Codebook | None]:
    """Returns the cache and the codebook that `kv` asks for.

    "auto" and "auto:0.02" are the fewest bits of terse-N whose measured KL divergence from f16 on the model is at most so many nats (0.005), or
    terse-4 where none was measured; "auto:2G" the most bits with which `context` tokens take at most so many bytes.
    """
    cache = kv if isinstance(kv, Cache) else Cache(kv)
    if not re.match(r"auto(:|$)", cache.method):
        return cache, find_codebook(model, cache, codebook)
    divergence, most_bytes = _allowed(cache.method)
    cache = replace(cache, method=METHOD_DEFAULT)
    profile = find_codebook(model, cache, codebook)
    if most_bytes:
        return _by_bytes(model, cache, profile, context, most_bytes), profile
    costs = profile.costs if profile else []
    rates = [bits for bits, cost in costs if cost <= divergence]
    if costs:
        cache = replace(cache, method=f"terse-{min(rates, default=EXACT_RATE):g}")
    return cache, profile


def _allowed(word: str) -> tuple[float, int]:
    """Returns the divergence, or the bytes, that "auto:0.02" or "auto:2G" allows."""
    _, colon, text = word.partition(":")
    if not colon:
        return MOST_DIVERGENCE, 0
    match = re.match(r"^(\d*\.?\d+(?:[eE][+-]?\d+)?)([KMG]?)i?B?$", text)
    if not match:
        raise ValueError(f'kv="{word}": give auto, auto:0.02 (a mean KL divergence from f16 in nats) or auto:2G (bytes for a context)')
    number = float(match[1])
    if not match[2] and number <= 10:
        return number, 0
    return 0, int(number * 1024 ** " KMG".index(match[2] or " "))


def _by_bytes(model: Model, cache: Cache, profile: Codebook | None, context: int, most: int) -> Cache:
    for quarters in range(4 * EXACT_RATE, 3, -1):
        cache = replace(cache, method=f"terse-{quarters / 4:g}")
        lengths = (context, min(context, constants["TERSE_FIT_TOKENS"]))
        peak = max(cache_bytes(model, cache, profile, tokens).resident for tokens in lengths)
        if peak <= most:
            return cache
    raise ValueError(f"{context} tokens take {peak} bytes with {cache.method}, more than the {most} allowed: allow as much, or lower context")
