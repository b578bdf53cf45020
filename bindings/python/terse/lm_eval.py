"""A model class for lm-evaluation-harness (pip install lm_eval): "terse".

lm_eval has no way to find models of other packages, so this module is its command with the class added:

    python -m terse.lm_eval --model terse --model_args path=model.gguf,kv=terse-2 --tasks hellaswag

In a program, `import terse.lm_eval` is enough; then lm_eval.simple_evaluate(model="terse", ...) finds it.
"""
from __future__ import annotations

import itertools
from typing import Any, Iterator, Sequence

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from .measures import _log_softmax
from .model import Model, Tokens


@register_model("terse")
class TerseLM(LM):  # type: ignore[misc] # lm_eval has no hints
    """The model of a GGUF file with a compressed KV cache.

    A context is prefilled, and a continuation is then read by decoding steps through the cache, so that scores are those of the cache that generates.

    Args:
        path: a GGUF file; None: the built-in model.
        kv, device, threads: as those of terse.Model and Model.session. torch's name cuda:0, which lm_eval gives unasked, is "auto".
        context: most tokens of a request, None: the model's. Earlier ones are dropped.
        max_gen_toks: tokens of a reply where the task names no number.
        batch_size, max_batch_size: lm_eval passes them; requests are computed one after another.
    """

    def __init__(self, path: str | None = None, kv: str = "auto", device: str = "cpu", threads: int = 0, context: int | None = None,
                 max_gen_toks: int = 256, batch_size: Any = None, max_batch_size: Any = None) -> None:
        super().__init__()
        self.model = Model(path, device="auto" if device.startswith("cuda:") else device, threads=threads)
        self.kv = kv
        self.max_length = context or self.model.info.context
        self.max_gen_toks = max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        """Names the chat format in lm_eval's cache of requests."""
        return self.model.info.name.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns a conversation as text in the model's own format."""
        return self.model.chat_text(chat_history, reply=add_generation_prompt or chat_history[-1]["role"] == "assistant")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Names the format for lm_eval's records: the library recognises the model's own and runs no template."""
        return "the model's own"

    # ---- Scores

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns for each (context, continuation) the log-probability of the continuation in nats, and whether it is the greedy one. Continuations of the
        same context that follow one another share its reading by forks."""
        found: list[tuple[float, bool]] = []
        for context, group in itertools.groupby(requests, lambda request: request.args[0]):
            pairs = [self._split(context, request.args[1]) for request in group]
            for begin, members in itertools.groupby(pairs, lambda pair: pair[0].tobytes()):
                found += self._score_all(np.frombuffer(begin, np.int32), [following for _, following in members])
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-probability of each whole text in nats; of texts longer than the context, window by window."""
        return [sum(score for score, _ in self._windows(request.args[0])) for request in requests]

    def _windows(self, text: str) -> Iterator[tuple[float, bool]]:
        """Yields the scores of a text's windows, which score each token once."""
        tokens = self.model.tokenize(text, begin=False).tolist()
        windows = get_rolling_token_windows(tokens, prefix_token=int(self._first()[-1]), max_seq_len=self.max_length - 1, context_len=1)
        for before, following in map(make_disjoint_window, windows):
            yield from self._score_all(np.array(before, np.int32), [np.array(following, np.int32)])

    def _first(self) -> Tokens:
        """Returns what stands before a text without a context: BOS, or, of a model without one, its own beginning of an empty text, or a newline."""
        if self.model.bos is not None:
            return np.array([self.model.bos], np.int32)
        tokens = self.model.tokenize("")
        return tokens if len(tokens) else self.model.tokenize("\n")

    def _split(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """Returns the tokens of a context and of what follows; white space at the context's end belongs to what follows, as with other models."""
        blanks = len(context) - len(context.rstrip())
        if blanks:
            context, continuation = context[:-blanks], context[-blanks:] + continuation
        if not context:
            return self._first(), self.model.tokenize(continuation, begin=False)
        begin = self.model.tokenize(context)
        following = self.model.tokenize(context + continuation)[len(begin):]
        room = self.max_length - len(following)
        return begin[-room:], following

    def _score_all(self, begin: Tokens, continuations: Sequence[Tokens]) -> list[tuple[float, bool]]:
        session = self.model.session(self.kv, context=self.max_length)
        session.prefill(begin)
        first = session.logits()
        scores = []
        for following in continuations:
            fork = session.fork() if len(continuations) > 1 else session
            rows = [first[None]] if first is not None else []
            rows += [fork.decode_logits(following[at : at + 64]) for at in range(0, len(following) - 1, 64)]
            log_p = _log_softmax(np.concatenate(rows)[: len(following)])
            scores.append((float(log_p[np.arange(len(following)), following].sum()), bool((log_p.argmax(1) == following).all())))
        return scores

    # ---- Replies

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the text behind each context, up to a stop string of the task."""
        return [self._reply(*request.args) for request in requests]

    def _reply(self, context: str, settings: dict[str, Any]) -> str:
        until = settings.get("until") or []
        stop = [until] if isinstance(until, str) else [text for text in until if text]
        most = int(settings.get("max_gen_toks", self.max_gen_toks))
        temperature = float(settings.get("temperature", 0)) if settings.get("do_sample") else 0.0
        tokens = self.model.tokenize(context)[-max(self.max_length - most, 1):]
        session = self.model.session(self.kv, context=self.max_length)
        return session.generate(tokens, max_tokens=most, stop=stop, temperature=temperature)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
