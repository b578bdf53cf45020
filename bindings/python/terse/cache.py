"""Says how a KV cache is kept: its options, what it takes, the codebook that it needs, and the method that kv="auto" chooses.

What was measured of a model and which codebooks are kept is shared with the command `terse`: the same files in the user's cache directory, and the
library's choice (terse_choice.h).
"""
from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Union

from . import _library
from ._library import Handle, c, call, structs

if TYPE_CHECKING:
    from .model import Model


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
        least_rate: bits per value to which pages of terse-N are lowered, by and by, where Model's kv_budget has no room; None: they stay as
            they are.
    """

    method: str = "f16"
    key_type: str | None = None
    value_type: str | None = None
    tail_tokens: int | None = None
    anchors: int | float | None = None
    read: int | float | None = None
    evict: str | None = None
    least_rate: float | None = None

    def _options(self, codebook: Codebook | None = None) -> ctypes.Structure:
        options = c.terse_cache_options_defaults()
        options.method = self.method.encode()
        options.key_type = self.key_type and self.key_type.encode()
        options.value_type = self.value_type and self.value_type.encode()
        options.evict = self.evict and self.evict.encode()
        if self.least_rate is not None:
            options.least_rate = self.least_rate
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
_ANY_RATE = "terse-4"  # all of them take the model's profile


@dataclass(frozen=True)
class CacheReport:
    """What a cache takes, in bytes unless said otherwise. resident = codes + exact + window + tables + recurrent.

    Attributes:
        tokens: tokens that the sequence has seen.
        kept: tokens that are still readable.
        resident: all bytes of keys and values.
        codes: pages of codes; `shared` of them lie in other sessions too (forks).
        exact, window, tables: exact tokens, the recent window, page tables and the policy's state.
        codebook: memory of the codebook, beside `resident`.
        recurrent: states of recurrent layers: the sequence's, and those that it can go back to.
        bits_per_value: resident * 8 / (values of all tokens seen).
        rates: where pages may be lowered (Cache.least_rate), the tokens in pages of each rate, by bits per value; else empty.
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
    recurrent: int
    bits_per_value: float
    rates: dict[float, int] = field(default_factory=dict)

    @classmethod
    def _of(cls, report: ctypes.Structure) -> CacheReport:
        numbers = {name: getattr(report, name) for name, *_ in report._fields_ if name not in ("n_rates", "rates", "rate_tokens")}
        return cls(**numbers, rates=dict(zip(report.rates[: report.n_rates], report.rate_tokens[: report.n_rates])))


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


def _kept_path(model: Model, name: str) -> Path | None:
    """Returns where the command `terse` keeps a codebook of the model; None where the user has no such place."""
    path = ctypes.create_string_buffer(4096)
    status = c.terse_kept_path(model._handle.pointer, name.encode(), b".gguf", path, len(path), None)
    return None if status else Path(os.fsdecode(path.value))


def find_codebook(model: Model, cache: Cache, given: Codebook | str | os.PathLike[str] | None) -> Codebook | None:
    """Returns the codebook for a cache: the given one ("none": none), the one that the command `terse` has kept, or the built-in model's profile."""
    if isinstance(given, Codebook):
        return given
    name = _needed(cache)
    if not name or given == "none":
        return None
    if given is not None:
        return Codebook(given)
    for path in (_kept_path(model, name), _library.BUILT_IN_PROFILE):
        if path and path.exists():
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
    """Returns the cache and the codebook that `kv` asks for, where a session may hold so many tokens (0: the model's context).

    "auto" is the method that `terse tune` has picked for the model, where there is one that fits, else the same as "auto:0.005"; "auto:0.02" the fewest bits
    of terse-N whose measured KL divergence from f16 on the model is at most so many nats, or terse-4 where none was measured; "auto:2G" the most bits with
    which `context` tokens take at most so many bytes. Where the model has a kv_budget, it may lower pages to terse-1.5, or as far as ",min=terse-N" behind
    these says ("auto:min=terse-2").
    """
    cache = kv if isinstance(kv, Cache) else Cache(kv)
    chooses = ctypes.c_bool()
    call(c.terse_choice_check, cache.method.encode(), ctypes.byref(chooses))
    if not chooses:
        return cache, find_codebook(model, cache, codebook)
    profile = find_codebook(model, replace(cache, method=_ANY_RATE), codebook)
    options = c.terse_choice_options_defaults()
    options.kv = cache.method.encode()
    options.device = model.device.encode()
    options.context = context
    options.kv_budget = model._kv_budget
    options.cache = cache._options(profile)
    choice = structs["terse_choice"]()
    call(c.terse_choose, model._handle.pointer, ctypes.byref(options), ctypes.byref(choice))
    cache = replace(cache, method=choice.method.decode(), least_rate=choice.least_rate or cache.least_rate)
    return cache, profile if _needed(cache) == _needed(replace(cache, method=_ANY_RATE)) else find_codebook(model, cache, codebook)
