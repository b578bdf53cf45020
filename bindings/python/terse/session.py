"""Sessions: one sequence of a model, with its tokens, KV cache and sampler. Owns how a prompt is read so that Ctrl-C stops it, and how logits leave C."""
from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, Literal, Sequence, TypedDict, TypeVar, Union, overload

import numpy as np
import numpy.typing as npt

from . import _library, chat
from . import cache as caches
from ._library import Handle, c, call, structs
from .errors import CancelledError, ContextError
from .model import Message, Model, Tokens, Tool, pointer_to
from .tools import Reply, ToolCall
from .writer import Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack

Logits = npt.NDArray[np.float32]
Text = Union[str, Sequence[int], Tokens]
Result = TypeVar("Result")


class Sampling(TypedDict, total=False):
    """How the next token is chosen. What is not named has the library's default, which is in brackets.

    temperature: 0 is greedy [0.8]. top_k: 0 is all [40]. top_p, min_p, typical_p: 1, 0 and 1 are all [0.95, 0.05, 1]. repeat_penalty: 1 is none [1].
    presence_penalty, frequency_penalty: 0 is none [0]. repeat_last: newest tokens that penalties look at [64]. seed: [1]; the same seed, the same text.
    logit_bias: what is added to the logits of tokens, {token: bias}.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last: int
    seed: int
    logit_bias: dict[int, float]


@dataclass(frozen=True)
class Counters:
    """What a session has done: tokens, seconds, and bytes of keys and values that decoding steps read (struct terse_counters)."""

    prefill_tokens: int
    decode_tokens: int
    prefill_seconds: float
    decode_seconds: float
    attention_seconds: float
    attention_bytes: int


class Session:
    """One sequence, made by Model.session, Model.load or fork. One thread at a time may use it, but for cancel.

    Attributes:
        model: the model.
        context: most tokens that the sequence may hold.
        cache_options: how the KV cache is kept; `kv` is the method's name alone, and what kv="auto" chose.
        messages: the conversation that the session holds, if it holds one and nothing else (chat). Set it after Model.load to go on with a chat.
        tools: the tools that the conversation was told of. Set it with `messages`.
        finish_reason: why the last text ended: "stop" (its own end, or a stop string), "length" (max_tokens, or a full context), or None.
    """

    def __init__(self, model: Model, cache: caches.Cache, codebook: caches.Codebook | None, context: int, pointer: Any) -> None:
        self.model = model
        self.cache_options = cache
        self.context = context
        self.messages: list[Message] = []
        self.tools: list[Tool] = []
        self.finish_reason: str | None = None
        self._codebook = codebook
        self._reading = False
        self._handle: Handle | None = model._engine.own_session(pointer, codebook)

    @classmethod
    def _new(cls, model: Model, kv: caches.Kv, codebook: Any, options: ctypes.Structure) -> Session:
        cache, found = caches.choose(model, kv, codebook, options.context)
        return cls._open(model, cache, found, options, c.terse_session_new)

    @classmethod
    def _load(cls, model: Model, path: str | os.PathLike[str], kv: caches.Kv | None, codebook: Any, options: ctypes.Structure) -> Session:
        if kv is None:
            name = ctypes.create_string_buffer(128)
            call(c.terse_state_method, os.fsencode(path), name, len(name))
            kv = name.value.decode()
        cache, found = caches.choose(model, kv, codebook, options.context)
        return cls._open(model, cache, found, options, c.terse_session_load, os.fsencode(path))

    @classmethod
    def _open(cls, model: Model, cache: caches.Cache, codebook: caches.Codebook | None, options: Any, make: Any, *arguments: Any) -> Session:
        pointer = _library.pointer_type("terse_session")()
        options.cache = cache._options(codebook)
        with model._engine.held():
            call(make, model._engine.pointer, ctypes.byref(options), *arguments, ctypes.byref(pointer))
        return cls(model, cache, codebook, options.context or model.info.context, pointer)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<terse.Session {self.kv}, {len(self)} tokens>" if self._handle else "<terse.Session, closed>"

    def close(self) -> None:
        """Releases the session's memory, as dropping the last reference does. A view of logits keeps it until that is dropped, too."""
        self._handle = None

    @property
    def kv(self) -> str:
        """The name of the cache's method: "terse-3"."""
        return self.cache_options.method

    # ---- Using the session in C

    @property
    def _pointer(self) -> Any:
        if self._handle is None:
            raise ValueError("the session is closed")
        return self._handle.pointer

    @contextlib.contextmanager
    def _held(self) -> Iterator[Any]:
        """Holds the engine, with no prompt under way: one is left where a second Ctrl-C came while the first was being handled."""
        pointer = self._pointer
        with self.model._engine.held():
            if not self._reading and _progress(pointer)[1]:
                _drop_prompt(self.model, pointer)
            yield pointer

    # ---- Reading

    def prefill(self, prompt: Text | Sequence[Message], *, progress: Callable[[float], object] | None = None) -> None:
        """Reads a prompt, or a later turn, behind what the session holds.

        Args:
            prompt: text; tokens; or messages, which are read up to the content of the last, so that chat(messages + more) goes on from there.
            progress: called with the part that is read, 0 to 1, some 20 times a second. What it raises stops the prompt.

        A failure, Ctrl-C or cancel leaves the session as it was, but for one that comes when the last piece is read. `logits` returns those of the next
        token.
        """
        if chat.is_conversation(prompt):
            chat.read(self, prompt, progress)
        else:
            self._read(self._tokens(prompt), progress=progress)
            self.messages = []

    def prefill_logits(self, tokens: Sequence[int] | Tokens, *, first: int = 0) -> Logits:
        """Reads a prompt as prefill does; returns the logits after each of its tokens from the first-th on, float32 [n - first][vocabulary]."""
        array = _as_tokens(tokens)
        rows = np.empty((max(len(array) - first, 0), self.model.info.vocabulary), np.float32)
        self._read(array, rows, first)
        self.messages = []
        return rows

    def decode(self, tokens: Sequence[int] | Tokens) -> None:
        """Appends tokens in one decoding step; they are exact among themselves and reach earlier ones through the cache."""
        self._decode(_as_tokens(tokens))
        self.messages = []

    def decode_logits(self, tokens: Sequence[int] | Tokens) -> Logits:
        """Appends tokens in one decoding step; returns the logits after each, float32 [n][vocabulary]."""
        array = _as_tokens(tokens)
        rows = np.empty((len(array), self.model.info.vocabulary), np.float32)
        with _sink(rows, 0) as sink:
            _apart(lambda: self._decode(array, ctypes.byref(sink)))
        self.messages = []
        return rows

    def _decode(self, tokens: Tokens, sink: Any = None) -> None:
        with self._held() as pointer:
            call(c.terse_session_decode, pointer, pointer_to(tokens), len(tokens), sink)

    def _tokens(self, prompt: Any) -> Tokens:
        """Returns the tokens of a prompt; a text at the beginning begins as the model's file says."""
        return self.model.tokenize(prompt, begin=len(self) == 0) if isinstance(prompt, str) else _as_tokens(prompt)

    def _read(self, tokens: Tokens, rows: Logits | None = None, first: int = 0, progress: Callable[[float], object] | None = None) -> None:
        """Reads tokens piece by piece (terse_session_begin_prompt), so that Python handles signals between pieces."""
        self._reading = True
        try:
            with _sink(rows, first) as sink:
                self._begin(tokens, sink)
                while part := self._step() if rows is None else _apart(self._step):
                    if progress:
                        progress(part)
            if progress:
                progress(1)
        except BaseException:
            with self.model._engine.held():
                _drop_prompt(self.model, self._pointer)
            raise
        finally:
            self._reading = False

    def _begin(self, tokens: Tokens, sink: Any) -> None:
        with self.model._engine.held():
            _drop_prompt(self.model, self._pointer)
            call(c.terse_session_begin_prompt, self._pointer, pointer_to(tokens), len(tokens), sink and ctypes.byref(sink))

    def _step(self) -> float:
        """Goes on with the prompt; returns the part that is read, or 0 where it is finished."""
        with self.model._engine.held():
            step_prompt(self.model, self._pointer)
            done, total = _progress(self._pointer)
        return max(done / total, 1e-9) if total else 0

    def cancel(self) -> None:
        """Stops the call that reads tokens into the session, or the next one: it raises CancelledError and leaves the session as it was. Any thread may
        call it."""
        c.terse_session_cancel(self._pointer)

    # ---- Logits

    def logits(self, *, copy: bool = True) -> Logits | None:
        """Returns the logits of the next token, float32 [vocabulary] in natural-log units, not normalised; None before the first token.

        Args:
            copy: False: a read-only view of the session's own memory, which holds until the session reads or resets; the array stays valid memory for as
                long as it lives, but its numbers are then no longer of this token.
        """
        with self._held() as pointer:
            address = c.terse_session_logits(pointer)
            if not address:
                return None
            buffer: Any = (ctypes.c_float * self.model.info.vocabulary).from_address(ctypes.addressof(address.contents))
            buffer._owner = self._handle  # the array keeps the buffer, and the buffer the session in C
            view: Logits = np.frombuffer(buffer, np.float32)
            view.flags.writeable = False
            return view.copy() if copy else view

    # ---- Generating

    def sample(self) -> int:
        """Chooses the next token from the logits; does not append it."""
        token = ctypes.c_int32()
        with self._held() as pointer:
            call(c.terse_session_sample, pointer, ctypes.byref(token))
        return token.value

    def set_sampling(self, **sampling: Unpack[Sampling]) -> None:
        """Sets how the session samples, and restarts its random numbers from the seed."""
        options = c.terse_sampling_defaults()
        biases = sampling.get("logit_bias", {})
        for name, value in sampling.items():
            if name == "logit_bias":
                continue
            if not hasattr(options, name) or name in ("size", "biases", "n_biases"):
                raise TypeError(f"there is no setting of sampling {name!r}; there are {', '.join(Sampling.__annotations__)}")
            setattr(options, name, value)
        options.biases = (structs["terse_logit_bias"] * len(biases))(*biases.items())
        options.n_biases = len(biases)
        with self._held() as pointer:
            call(c.terse_session_set_sampling, pointer, ctypes.byref(options))

    @overload
    def generate(self, prompt: Text | None = ..., *, max_tokens: int | None = ..., stop: str | Sequence[str] | None = ..., stream: Literal[False] = ...,
                 **sampling: Unpack[Sampling]) -> str: ...

    @overload
    def generate(self, prompt: Text | None = ..., *, max_tokens: int | None = ..., stop: str | Sequence[str] | None = ..., stream: Literal[True],
                 **sampling: Unpack[Sampling]) -> Iterator[str]: ...

    def generate(self, prompt: Text | None = None, *, max_tokens: int | None = None, stop: str | Sequence[str] | None = None, stream: bool = False,
                 **sampling: Unpack[Sampling]) -> str | Iterator[str]:
        """Reads a prompt, if there is one, and returns the text that the model writes behind it.

        Args:
            prompt: text or tokens. None: goes on behind what the session holds.
            max_tokens: tokens to write at most; None: up to the text's own end, or until the context is full.
            stop: strings before which the text ends.
            stream: returns an iterator of pieces of the text, as they are written, instead of the text.
            sampling: settings of Sampling; where there is any, the random numbers restart from the seed.
        """
        if sampling:
            self.set_sampling(**sampling)
        if prompt is not None:
            self._read(self._tokens(prompt))
        self.messages = []
        pieces = self._write(max_tokens, stop)
        return pieces if stream else "".join(pieces)

    def _write(self, max_tokens: int | None, stop: str | Sequence[str] | None, options: Any = None) -> Iterator[str]:
        """Yields the text that the model writes. At each piece the session holds all tokens of the text so far.

        `options`: the text replies to a conversation with tools, to which its calls are held.
        """
        writer = Writer(self.model, max_tokens, stop, options)
        self.finish_reason = None
        if options is None:
            yield from self._pieces(writer)
            return
        with self._held() as pointer:
            call(c.terse_session_hold_calls, pointer, ctypes.byref(options))
        try:
            yield from self._pieces(writer)
        finally:
            if self._handle is not None:
                with self._held() as pointer:
                    c.terse_session_allow_any_text(pointer)

    def _pieces(self, writer: Writer) -> Iterator[str]:
        while writer.finish_reason is None:
            token = self.sample() if writer.wants_token() else None
            piece = writer.take(token)
            if writer.appends:
                try:
                    self._decode(np.array([token], np.int32))
                except ContextError:
                    writer.finish_reason = "length"
            if piece:
                yield piece
        if rest := writer.finish():
            yield rest
        self.finish_reason = writer.finish_reason

    @overload
    def chat(self, messages: Sequence[Message], *, tools: None = ..., format: str | None = ..., max_tokens: int | None = ...,
             stop: str | Sequence[str] | None = ..., stream: Literal[False] = ..., **sampling: Unpack[Sampling]) -> str: ...

    @overload
    def chat(self, messages: Sequence[Message], *, tools: None = ..., format: str | None = ..., max_tokens: int | None = ...,
             stop: str | Sequence[str] | None = ..., stream: Literal[True], **sampling: Unpack[Sampling]) -> Iterator[str]: ...

    @overload
    def chat(self, messages: Sequence[Message], *, tools: Sequence[Tool], format: str | None = ..., max_tokens: int | None = ...,
             stop: str | Sequence[str] | None = ..., stream: Literal[False] = ..., **sampling: Unpack[Sampling]) -> Reply: ...

    @overload
    def chat(self, messages: Sequence[Message], *, tools: Sequence[Tool], format: str | None = ..., max_tokens: int | None = ...,
             stop: str | Sequence[str] | None = ..., stream: Literal[True], **sampling: Unpack[Sampling]) -> Iterator[str | ToolCall]: ...

    def chat(self, messages: Sequence[Message], *, tools: Sequence[Tool] | None = None, format: str | None = None, max_tokens: int | None = None,
             stop: str | Sequence[str] | None = None, stream: bool = False,
             **sampling: Unpack[Sampling]) -> str | Iterator[str] | Reply | Iterator[str | ToolCall]:
        """Returns the assistant's reply to a conversation, [{"role": "user", "content": "Hello"}, ...]; a last message of the assistant's goes on.

        Give the whole conversation each time: what the session holds of it (`messages`) is not read again. A conversation that begins otherwise is read
        anew. `format` is one of terse.chat_formats(); None: the model's own. The other arguments are those of generate.

        `tools` are functions that the assistant may call, in OpenAI's form: {"type": "function", "function": {"name": ..., "parameters": JSON schema}}.
        With them the reply is a terse.Reply, or in a stream pieces of text and terse.ToolCall. UnsupportedError where the model's template has no tools.
        """
        if sampling:
            self.set_sampling(**sampling)
        if tools is None:
            pieces = chat.reply(self, messages, tools, format, max_tokens, stop)
            return pieces if stream else "".join(pieces)
        found = chat.reply_with_calls(self, messages, tools, format, max_tokens, stop)
        return found if stream else chat.whole_reply(self, found)

    # ---- The sequence

    def __len__(self) -> int:
        """Returns the tokens that the session has seen."""
        with self.model._engine.held():
            return c.terse_session_length(self._pointer)

    def reset(self) -> None:
        """Forgets the sequence."""
        with self._held() as pointer:
            c.terse_session_reset(pointer)
        self.messages = []

    def truncate(self, n: int) -> None:
        """Forgets the tokens from the n-th on. UnsupportedError where tokens were evicted and the like: truncate to 0 and read again."""
        with self._held() as pointer:
            call(c.terse_session_truncate, pointer, n)
        self.messages = []

    def fork(self) -> Session:
        """Makes a second session of the same sequence and sampler; then each goes its own way. Sealed pages lie in memory once."""
        copy = _library.pointer_type("terse_session")()
        with self._held() as pointer:
            call(c.terse_session_fork, pointer, ctypes.byref(copy))
        made = Session(self.model, self.cache_options, self._codebook, self.context, copy)
        made.messages, made.tools = list(self.messages), list(self.tools)
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the session to a file, from which Model.load goes on. The old file or the new one is there at any time, whole."""
        with self._held() as pointer:
            call(c.terse_session_save, pointer, os.fsencode(path))

    # ---- Reports

    @property
    def cache(self) -> caches.CacheReport:
        """What the KV cache takes now, in bytes."""
        report = structs["terse_cache_report"]()
        with self.model._engine.held():
            c.terse_session_cache(self._pointer, ctypes.byref(report))
        return caches.CacheReport._of(report)

    def counters(self) -> Counters:
        """Returns what the session has done since it was made."""
        counters = structs["terse_counters"]()
        with self.model._engine.held():
            c.terse_session_counters(self._pointer, ctypes.byref(counters), False)
        return Counters(**{name: getattr(counters, name) for name, *_ in counters._fields_})


def _as_tokens(tokens: Any) -> Tokens:
    return np.ascontiguousarray(tokens, np.int32)


# ---- Prompts under way. The caller holds the engine.


def _progress(pointer: Any) -> tuple[int, int]:
    done, total = ctypes.c_uint64(), ctypes.c_uint64()
    c.terse_session_prompt(pointer, ctypes.byref(done), ctypes.byref(total))
    return done.value, total.value


def step_prompt(model: Model, pointer: Any) -> None:
    """Goes on with a session's prompt for the engine's prompt_ms, about a twentieth of a second."""
    item = structs["terse_step_item"](session=pointer)
    error = structs["terse_error"]()
    status = c.terse_engine_step(model._engine.pointer, ctypes.byref(item), 1, ctypes.byref(error)) or item.status
    if status:
        raise _library.failure(status, error)


def _drop_prompt(model: Model, pointer: Any) -> None:
    if _progress(pointer)[1]:
        c.terse_session_cancel(pointer)
        with contextlib.suppress(CancelledError):
            step_prompt(model, pointer)


# ---- Rows of logits


@contextlib.contextmanager
def _sink(rows: Logits | None, first: int) -> Iterator[Any]:
    """Makes a sink that writes rows from the first-th on to rows[n][vocabulary]; None for no rows."""
    if rows is None:
        yield None
        return
    row_type = dict(structs["terse_logits_sink"]._fields_)["row"]

    def take(_: Any, i: int, logits: Any) -> None:
        ctypes.memmove(rows[i - first].ctypes.data, logits, rows.shape[1] * 4)

    yield structs["terse_logits_sink"](row=row_type(take), first=first)


_helper = concurrent.futures.ThreadPoolExecutor(1, "terse")


def _apart(work: Callable[[], Result]) -> Result:
    """Runs a call that takes rows beside the main thread, where Python would raise KeyboardInterrupt inside the callback and lose it. An interrupt is raised
    here when the call has ended."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    future = _helper.submit(work)
    try:
        return future.result()
    except KeyboardInterrupt:
        concurrent.futures.wait([future])
        raise


