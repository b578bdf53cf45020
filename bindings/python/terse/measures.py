"""Measures: how well a model with a compressed cache predicts a text, how far it moves from another cache, and how fast it writes.

Quality is measured with the cache that generates, as `terse perplexity` does: of each window of the text the first half is prefilled and sealed, the second
half is fed by decoding steps, and the tokens from the middle on are scored, each by the row of logits before it.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ._library import c, call
from .cache import CacheReport, Kv
from .model import Model, Tokens
from .session import Logits, Session

STEP = 64  # tokens of a decoding step of the second half, as in `terse perplexity`

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text.

    Attributes:
        perplexity: exp of the mean negative log-likelihood; `error` is its standard error.
        nll: the negative log-likelihood of each scored token in nats, float64 [positions].
        cache: what the cache takes after the last window.
    """

    kv: str
    perplexity: float
    error: float
    nll: Values
    cache: CacheReport


@dataclass(frozen=True)
class Divergence:
    """How far a cache moves the probabilities of the next token.

    Attributes:
        mean: mean KL divergence from the base's probabilities in nats; `error` is its standard error.
        values: the divergence at each scored position, float64 [positions].
        same_top: part of the positions, 0 to 1, at which both caches have the same likeliest token.
        perplexity, base_perplexity: of the text, with the cache and with the base.
        cache: what the cache takes after the last window.
    """

    kv: str
    mean: float
    error: float
    values: Values
    same_top: float
    perplexity: float
    base_perplexity: float
    cache: CacheReport


@dataclass(frozen=True)
class Speed:
    """Decoding behind `depth` tokens: steps of one token a second, seconds of a step, and the part of it that is attention."""

    kv: str
    depth: int
    tokens_per_second: float
    step_seconds: float
    attention_seconds: float


def perplexity(model: Model, text: str | Sequence[int] | Tokens, *, kv: Kv = "auto", context: int = 512, windows: int | None = None) -> Perplexity:
    """Returns the perplexity of a text with a cache.

    Args:
        text: text, or its tokens.
        context: tokens of a window; the text has at least as many.
        windows: windows to score; None: all that are whole.
    """
    session = model.session(kv, context=context)
    nll = np.concatenate([_nll(rows, following) for (rows,), following in _windows(model, [session], text, context, windows)])
    value = float(np.exp(nll.mean()))
    return Perplexity(session.kv, value, value * _error(nll), nll, session.cache)


def kl_divergence(model: Model, text: str | Sequence[int] | Tokens, *, kv: Kv = "auto", base: Kv = "f16", context: int = 512,
                  windows: int | None = None) -> Divergence:
    """Returns how far a cache moves a model's probabilities from those with another one, `base`; both read the text side by side. The other arguments are
    those of perplexity."""
    session, exact = model.session(kv, context=context), model.session(base, context=context)
    values, same, nll, base_nll = [], [], [], []
    for (rows, base_rows), following in _windows(model, [session, exact], text, context, windows):
        log_p, base_log_p = _log_softmax(rows), _log_softmax(base_rows)
        values.append((np.exp(base_log_p) * (base_log_p - log_p)).sum(1))
        same.append(rows.argmax(1) == base_rows.argmax(1))
        nll.append(_nll(rows, following))
        base_nll.append(_nll(base_rows, following))
    all_values = np.concatenate(values)
    return Divergence(session.kv, float(all_values.mean()), _error(all_values), all_values, float(np.concatenate(same).mean()),
                      float(np.exp(np.concatenate(nll).mean())), float(np.exp(np.concatenate(base_nll).mean())), session.cache)


def speed(model: Model, *, kv: Kv = "auto", depths: Sequence[int] = (0, 1024, 4096), steps: int = 16) -> list[Speed]:
    """Returns how fast single tokens are written behind so many others, as `terse bench` measures it: the cache is filled with random keys and values."""
    return [_speed_at(model, kv, depth, steps) for depth in depths]


def _speed_at(model: Model, kv: Kv, depth: int, steps: int) -> Speed:
    session = model.session(kv, context=depth + steps + 1, allow_longer_context=True)
    if depth:
        with session._held() as pointer:
            call(c.terse_session_fill_random, pointer, depth, 1)
    session.decode([1])  # brings weights into memory
    before = session.counters()
    for token in range(steps):
        session.decode([token % model.info.vocabulary])
    after = session.counters()
    seconds = (after.decode_seconds - before.decode_seconds) / steps
    return Speed(session.kv, depth, 1 / seconds, seconds, (after.attention_seconds - before.attention_seconds) / steps)


def _windows(model: Model, sessions: Sequence[Session], text: str | Sequence[int] | Tokens, context: int,
             windows: int | None) -> Iterator[tuple[list[Logits], Tokens]]:
    """Yields the rows of each session, float32 [n][vocabulary], and the tokens [n] that follow them, step by step."""
    tokens = model.tokenize(text, special=False) if isinstance(text, str) else np.asarray(text, np.int32)
    n = len(tokens) // context
    if not n:
        raise ValueError(f"the text has {len(tokens)} tokens, too few for a window of {context}: give a smaller context")
    for i in range(n if windows is None else min(n, windows)):
        window = tokens[i * context : (i + 1) * context].copy()
        if model.adds_bos:
            window[0] = model.bos
        for session in sessions:
            session.reset()
            session.prefill(window[: context // 2])
        for at in range(context // 2, context, STEP):
            rows = [session.decode_logits(window[at : at + STEP]) for session in sessions]
            following = window[at + 1 : at + STEP + 1]
            if len(following):
                yield [some[: len(following)] for some in rows], following


def _log_softmax(rows: Logits) -> Values:
    shifted = rows.astype(np.float64)
    shifted -= shifted.max(1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(1, keepdims=True))
    return shifted


def _nll(rows: Logits, following: Tokens) -> Values:
    most = rows.max(1, keepdims=True)
    log_sum = np.log(np.exp(rows.astype(np.float64) - most).sum(1)) + most[:, 0]
    values: Values = log_sum - rows[np.arange(len(rows)), following]
    return values


def _error(values: Values) -> float:
    """Returns the standard error of the mean."""
    return float(values.std() / np.sqrt(max(len(values) - 1, 1)))


