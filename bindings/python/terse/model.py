"""Models: a GGUF file on a device, its tokenizer and chat format, and the engine that computes its sessions."""
from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from . import _library, batch
from . import cache as caches
from ._library import Handle, c, call, constants, structs, text_at

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .session import Sampling, Session

# {"role": "system" | "user" | "assistant" | "tool", "content": text}, of the assistant also "tool_calls" as OpenAI's
Message = Mapping[str, Any]
Tool = Mapping[str, Any]  # {"type": "function", "function": {"name": ..., "description": ..., "parameters": JSON schema}}
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ModelInfo:
    """The shape of a model, as terse.h describes it (struct terse_model_info). `bytes` and `parameters` are of all tensors."""

    architecture: str
    name: str
    weights: str
    layers: int
    width: int
    query_heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    experts: int
    experts_used: int
    vocabulary: int
    merges: int
    context: int
    sliding_layers: int
    sliding_window: int
    recurrent_layers: int
    attention_interval: int
    latent: int
    parameters: int
    bytes: int
    embedding_bytes: int
    fingerprint: int
    norms_fingerprint: int


class Engine:
    """The model on its device, and the lock under which one thread at a time uses it and its sessions.

    A session may be dropped anywhere, also while the same thread computes (the garbage collector runs there), so that it is released by whoever holds the
    lock next.
    """

    def __init__(self, model: Handle, options: ctypes.Structure) -> None:
        pointer = _library.pointer_type("terse_engine")()
        call(c.terse_engine_new, model.pointer, ctypes.byref(options), ctypes.byref(pointer))
        self.pointer = pointer
        self._handle = Handle(pointer, c.terse_engine_free, model)
        self._lock = threading.Lock()
        self._dropped: collections.deque[Callable[[], None]] = collections.deque()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock."""
        with self._lock:
            self._release_dropped()
            yield
        self._release_if_free()

    def own_session(self, pointer: Any, codebook: caches.Codebook | None) -> Handle:
        """Returns a handle of a session of C."""
        keeps = [self._handle] + ([codebook._handle] if codebook else [])
        return Handle(pointer, c.terse_session_free, *keeps, through=self._drop)

    def _drop(self, release: Callable[[], None]) -> None:
        """Releases a session, now or as soon as the engine is not in use."""
        self._dropped.append(release)
        self._release_if_free()

    def _release_if_free(self) -> None:
        if self._dropped and self._lock.acquire(blocking=False):
            try:
                self._release_dropped()
            finally:
                self._lock.release()

    def _release_dropped(self) -> None:
        while self._dropped:
            self._dropped.popleft()()


class Model:
    """A model on a device.

    Args:
        path: a GGUF file (of one split into parts, the first); None: the built-in model lab-27m, which continues prose and finds facts in a text.
        device: "cpu", "cuda" or another backend that is installed, "gpu": the first that there is, "auto": a GPU where one serves the model.
        threads: threads that compute; 0: one per processor.
        kv_budget: bytes that the caches of all sessions may take together; 0: no limit. Beyond it OutOfMemoryError is raised.

    Any number of Python threads may use a model and its sessions. They take turns, each call releases the GIL, and a call computes on all threads.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, device: str = "cpu", threads: int = 0, kv_budget: int = 0) -> None:
        pointer = _library.pointer_type("terse_model")()
        call(c.terse_model_load, os.fsencode(path or _library.BUILT_IN_MODEL), ctypes.byref(pointer))
        self._handle = Handle(pointer, c.terse_model_free)
        info = structs["terse_model_info"]()
        c.terse_model_describe(pointer, ctypes.byref(info))
        values = {name: getattr(info, name) for name, *_ in info._fields_}
        described: dict[str, Any] = {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}
        self.info = ModelInfo(**described)
        options = c.terse_engine_options_defaults()
        options.threads, options.kv_budget, options.device = threads, kv_budget, device.encode()
        self._kv_budget = kv_budget
        self._engine = Engine(self._handle, options)

    def __repr__(self) -> str:
        return f"<terse.Model {self.info.name or self.info.architecture} {self.info.weights} on {self.device}>"

    @property
    def device(self) -> str:
        """The backend that computes: "cpu", "cuda"."""
        return text_at(c.terse_engine_device(self._engine.pointer))

    @property
    def threads(self) -> int:
        """How many threads compute."""
        return c.terse_engine_threads(self._engine.pointer)

    @property
    def kv_bytes(self) -> int:
        """Bytes that the caches of all sessions take now; pages that forks share count once."""
        with self._engine.held():
            return c.terse_engine_kv_bytes(self._engine.pointer)

    # ---- Text and tokens

    def tokenize(self, text: str, *, begin: bool = True, special: bool = True) -> Tokens:
        """Returns the tokens of a text, int32 [n].

        Args:
            begin: add BOS (and EOS) where the model's file says so, but no second BOS to a text that begins with its own.
            special: "<|eot_id|>" in the text is the special token, not its letters.
        """
        data = text.encode()
        flags = begin * constants["TERSE_TOKENIZE_ADD_SPECIAL"] + special * constants["TERSE_TOKENIZE_PARSE_SPECIAL"]
        tokens = np.empty(2 * len(data) + 4, np.int32)
        n = ctypes.c_size_t()
        call(c.terse_tokenize, self._handle.pointer, data, len(data), flags, pointer_to(tokens), len(tokens), ctypes.byref(n))
        twice = begin and n.value > 1 and tokens[0] == tokens[1] == self.bos
        return tokens[int(twice) : n.value].copy()

    def detokenize(self, tokens: Sequence[int] | Tokens, *, special: bool = False) -> str:
        """Returns the text of tokens. `special`: special tokens are text as well, instead of nothing."""
        detokenizer = Detokenizer(self, special)
        return "".join([detokenizer.push(int(token)) for token in tokens]) + detokenizer.finish()

    def token_ends(self, token: int) -> bool:
        """Returns whether the token ends a reply: EOS, EOT and the like."""
        return c.terse_token_ends(self._handle.pointer, token)

    @property
    def bos(self) -> int | None:
        """The model's BOS token, or None."""
        token = c.terse_token_bos(self._handle.pointer, None)
        return token if token >= 0 else None

    @property
    def adds_bos(self) -> bool:
        """Whether the model's file asks for BOS before each text."""
        added = ctypes.c_bool()
        c.terse_token_bos(self._handle.pointer, ctypes.byref(added))
        return added.value

    def chat_text(self, messages: Sequence[Message], *, format: str | None = None, reply: bool = True, tools: Sequence[Tool] | None = None) -> str:
        """Returns a conversation as text in the model's chat format, for people. `reply`: it ends where the assistant speaks next.

        `format` is one of terse.chat_formats() ("llama-3", "chatml", ...); None: the model's own. `tools` are those of Session.chat.
        """
        text = ctypes.c_void_p()
        options = chat_options(messages, format, reply, tools)
        call(c.terse_chat_render_with, self._handle.pointer, ctypes.byref(options), _messages(messages), len(messages), ctypes.byref(text))
        try:
            return text_at(text.value)
        finally:
            c.terse_string_free(text)

    def chat_tokens(self, messages: Sequence[Message], *, after: int = 0, format: str | None = None, reply: bool = True,
                    tools: Sequence[Tool] | None = None) -> Tokens:
        """Returns the tokens of a conversation, int32 [n]; contents are text, never special tokens. `after`: only what follows the content of so many
        first messages, which a session has read."""
        found, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        options = chat_options(messages, format, reply, tools)
        options.after = after
        call(c.terse_chat_tokenize_with, self._handle.pointer, ctypes.byref(options), _messages(messages), len(messages), ctypes.byref(found),
             ctypes.byref(n))
        try:
            return np.array(found[: n.value], np.int32)
        finally:
            c.terse_tokens_free(found)

    # ---- Sessions

    def session(self, kv: caches.Kv = "auto", *, context: int | None = None, allow_longer_context: bool = False, prefill: str = "exact",
                codebook: caches.Codebook | str | os.PathLike[str] | None = None) -> Session:
        """Makes a session: one sequence with its KV cache.

        Args:
            kv: the cache's method: "f16", "q8_0", "terse-3", ... (terse.methods()), or a terse.Cache. "auto", "auto:0.02": the fewest bits of terse-N
                whose measured KL divergence from f16 is at most so many nats (0.005), terse-4 where nothing was measured; "auto:2G": the most bits with
                which the context takes at most so many bytes.
            context: most tokens that the sequence may hold; None: as many as the model was trained for. It reserves nothing.
            allow_longer_context: permits more than the model was trained for.
            prefill: "exact", or "compressed": a prompt is read chunk by chunk through the cache.
            codebook: what a method has learned, a terse.Codebook or its file; None: what `terse calibrate` has kept; "none": terse-N goes without.
        """
        from .session import Session

        return Session._new(self, kv, codebook, self._session_options(context, allow_longer_context, prefill))

    def load(self, path: str | os.PathLike[str], *, kv: caches.Kv | None = None, context: int | None = None, allow_longer_context: bool = False,
             codebook: caches.Codebook | str | os.PathLike[str] | None = None) -> Session:
        """Makes a session that goes on where the saved one was (Session.save): the same logits and random numbers, and nothing is computed.

        The file is mapped and must not change while the session or a fork of it lives. `kv` is needed where the saved session had options beside its
        method (terse.Cache).
        """
        from .session import Session

        return Session._load(self, path, kv, codebook, self._session_options(context, allow_longer_context, "exact"))

    def _session_options(self, context: int | None, allow_longer_context: bool, prefill: str) -> ctypes.Structure:
        options = c.terse_session_options_defaults()
        options.context = context or 0
        options.allow_longer_context = allow_longer_context
        modes = {"exact": "TERSE_PREFILL_EXACT", "compressed": "TERSE_PREFILL_COMPRESSED", "paper": "TERSE_PREFILL_PAPER"}
        if prefill not in modes:
            raise ValueError(f'prefill="{prefill}": there are {", ".join(modes)}')
        options.prefill = constants[modes[prefill]]
        return options

    def cache_bytes(self, kv: caches.Kv, tokens: int, *, codebook: caches.Codebook | str | os.PathLike[str] | None = None) -> caches.CacheReport:
        """Returns what a cache of so many tokens will take, before anything is allocated."""
        cache, found = caches.choose(self, kv, codebook, tokens)
        return caches.cache_bytes(self, cache, found, tokens)

    # ---- Batches

    def step(self, tokens: Mapping[Session, Sequence[int]]) -> None:
        """Appends tokens to several sessions of the model in one decoding step, which reads the weights once for all (continuous batching). Each gets
        the logits and the cache that a step alone would give it."""
        batch.step(self, tokens)

    def generate_batch(self, prompts: Sequence[str | Sequence[int] | Sequence[Message]], *, kv: caches.Kv = "auto", context: int | None = None,
                       max_tokens: int | None = None, stop: str | Sequence[str] | None = None, **sampling: Unpack[Sampling]) -> list[str]:
        """Returns the texts that follow prompts (for messages, the replies), which are generated together. The arguments are those of session and of
        Session.generate."""
        return batch.generate(self, prompts, kv, context, max_tokens, stop, sampling)


class Detokenizer:
    """Turns a stream of tokens into text without ever cutting a character."""

    def __init__(self, model: Model, special: bool = False, reply: Any = None) -> None:
        """`reply`: the options of the conversation that the text replies to; its special tokens that are marks are shown."""
        pointer = _library.pointer_type("terse_detokenizer")()
        if reply is None:
            call(c.terse_detokenizer_new, model._handle.pointer, special, ctypes.byref(pointer))
        else:
            call(c.terse_detokenizer_new_for_reply, model._handle.pointer, ctypes.byref(reply), ctypes.byref(pointer))
        self._handle = Handle(pointer, c.terse_detokenizer_free, model._handle)

    def push(self, token: int) -> str:
        """Returns the whole characters that the token completes."""
        n = ctypes.c_size_t()
        return text_at(c.terse_detokenizer_push(self._handle.pointer, token, ctypes.byref(n)), n.value)

    def finish(self) -> str:
        """Returns the rest of the text."""
        n = ctypes.c_size_t()
        return text_at(c.terse_detokenizer_finish(self._handle.pointer, ctypes.byref(n)), n.value)


def chat_formats() -> list[str]:
    """Returns the names of the chat formats that the library knows: "llama-3", "chatml", ..."""
    names: list[str] = []
    while name := text_at(c.terse_chat_format_name(len(names))):
        names.append(name)
    return names


def pointer_to(tokens: Tokens) -> Any:
    """Returns the address of tokens for C; the array must live as long."""
    return tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _json(value: Any) -> bytes | None:
    return json.dumps(value, ensure_ascii=False).encode() if value else None


def chat_options(messages: Sequence[Message], format: str | None, reply: bool, tools: Sequence[Tool] | None) -> Any:
    options = c.terse_chat_options_defaults()
    options.format, options.open_reply, options.tools = _encoded(format), reply, _json(tools)
    options.tool_calls = (ctypes.c_char_p * len(messages))(*[_json(message.get("tool_calls")) for message in messages])
    options.tool_call_ids = (ctypes.c_char_p * len(messages))(*[_encoded(message.get("tool_call_id")) for message in messages])
    options.thoughts = (ctypes.c_char_p * len(messages))(*[_encoded(message.get("reasoning_content")) for message in messages])
    return options


def _messages(messages: Sequence[Message]) -> Any:
    made = (structs["terse_message"] * len(messages))()
    for to, message in zip(made, messages):
        says_nothing = message.get("content") is None and message.get("tool_calls")  # OpenAI's form of a reply that only calls
        to.role, to.content = message["role"].encode(), b"" if says_nothing else message["content"].encode()
    return made
