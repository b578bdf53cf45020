#!/usr/bin/env python3
"""Writes NAME.json beside this file: what other software makes of a public model's GGUF file, for test_models.py to hold terse to.

    python3 tests/models/make_reference.py FILE.gguf...      (`make test-models REFERENCE=1` fetches the models, installs what this needs, and runs it)

- perplexity, logits, replies: Hugging Face transformers in single precision on a processor, from the same file;
- tokens: the packages `tokenizers` (byte-level BPE) and `sentencepiece`, put together from the file's vocabulary as its makers' own tokenizer is;
- chats: jinja2, of the template in the file.
"""
import json
import os
import re
import sys
import warnings

import gguf
import jinja2
import sentencepiece
import tokenizers
import torch
import transformers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from material import (
    CONVERSATIONS, HERE, LOGITS_CONTEXT, PERPLEXITY_CONTEXT, QUESTIONS, REPLY_TOKENS, SYSTEM, block_sums, question_prompt, read_text,
)

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # types of tokens by the numbers of GGUF, and of sentencepiece
SPACE = "\u2581"


class Vocabulary:
    """Encodes as the makers' tokenizer does: `plain` takes special tokens in a text as letters, `special` as what they are."""

    def __init__(self, reader):
        value = lambda key, other=None: reader.fields["tokenizer." + key].contents() if "tokenizer." + key in reader.fields else other
        self.tokens, self.types = value("ggml.tokens"), value("ggml.token_type")
        self.bos, self.eos = value("ggml.bos_token_id"), value("ggml.eos_token_id")
        self.template = value("chat_template")
        if value("ggml.model") == "gpt2":
            self.add_bos = value("ggml.add_bos_token", False)
            self.plain = lambda text, t=self.byte_level(value("ggml.merges"), value("ggml.pre"), False): t.encode(text).ids
            self.special = lambda text, t=self.byte_level(value("ggml.merges"), value("ggml.pre"), True): t.encode(text).ids
        else:
            self.add_bos = value("ggml.add_bos_token", True)
            self.types[value("ggml.unknown_token_id")] = UNKNOWN  # which files may count as a control token
            self.processor = self.sentence_pieces(value("ggml.scores"), value("ggml.add_space_prefix", True))
            self.plain = self.processor.encode

    def byte_level(self, merges, pre, with_special):
        splits = {
            "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
            "qwen2": [
                pre_tokenizers.Split(
                    Regex(
                        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                    ),
                    "isolated",
                ),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ],
        }
        numbers = {token: i for i, token in enumerate(self.tokens)}
        tokenizer = Tokenizer(models.BPE(numbers, [tuple(merge.split(" ")) for merge in merges]))
        tokenizer.normalizer = normalizers.NFC() if pre == "qwen2" else None
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits[pre])
        if with_special:
            special = [token for token, kind in zip(self.tokens, self.types) if kind == CONTROL]
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
        return tokenizer

    def sentence_pieces(self, scores, add_space):
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto()
        for token, score, kind in zip(self.tokens, scores, self.types):
            model.pieces.add(piece=token.replace(" ", SPACE) if kind == USER_DEFINED else token, score=score, type=kind)
        trainer, normalizer = model.trainer_spec, model.normalizer_spec
        trainer.model_type, trainer.byte_fallback, trainer.vocab_size = trainer.BPE, True, len(self.tokens)
        trainer.unk_id = self.types.index(UNKNOWN)
        trainer.unk_piece = self.tokens[trainer.unk_id]
        normalizer.name, normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces = "identity", add_space, False
        return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())

    def piece(self, token):
        """The text of a token, as a person reads it."""
        if hasattr(self, "processor"):
            return self.processor.id_to_piece(token).replace(SPACE, " ")
        return tokenizers.decoders.ByteLevel().decode([self.tokens[token]])


def render(vocabulary, messages):
    def refuse(message):
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(vocabulary.template).render(
        messages=[{"role": role, "content": content} for role, content in messages],
        bos_token=vocabulary.tokens[vocabulary.bos], eos_token=vocabulary.tokens[vocabulary.eos], add_generation_prompt=True,
    )


def chats(vocabulary):
    if not vocabulary.template:
        return None
    texts = [render(vocabulary, messages) for messages in CONVERSATIONS]
    return [{"messages": m, "text": text, "tokens": vocabulary.special(text)} for m, text in zip(CONVERSATIONS, texts)]


def log_probabilities(model, tokens, first):
    """log p[token][vocabulary] after each token from the first-th on, in slices that memory holds."""
    hidden = model.model(torch.tensor([tokens])).last_hidden_state[0, first:]
    for at in range(0, len(hidden), 64):
        yield from torch.log_softmax(model.lm_head(hidden[at : at + 64]), dim=-1)


def window(vocabulary, tokens, context):
    """The first window as `terse perplexity` and llama.cpp read it: BOS, where the model has it, in place of its first token."""
    start = [vocabulary.bos] if vocabulary.add_bos else []
    return (start + tokens)[:context]


def perplexity(model, vocabulary, tokens):
    context = PERPLEXITY_CONTEXT
    tokens = window(vocabulary, tokens, context)
    rows = log_probabilities(model, tokens[:-1], context // 2)
    losses = [-float(row[token]) for row, token in zip(rows, tokens[context // 2 + 1 :])]
    assert len(losses) == context - 1 - context // 2
    return {"context": context, "value": round(float(torch.tensor(losses, dtype=torch.float64).mean().exp()), 5)}


def logits(model, vocabulary, tokens):
    """Returns for each position log p of the likeliest 16 tokens and of those of rank 32, 64, ..., if a base file tells them from impossible."""
    tokens = window(vocabulary, tokens, LOGITS_CONTEXT)
    rows = []
    for row in log_probabilities(model, tokens[:-1], LOGITS_CONTEXT // 2):
        values, order = row.sort(descending=True, stable=True)
        ranks = [*range(16), *(2**k - 1 for k in range(5, 30) if 2**k <= len(row))]
        rows.append([[int(order[r]), round(float(values[r]), 4)] for r in ranks if values[r] > values[0] - 15])
    assert len(rows) == 64
    return {"context": LOGITS_CONTEXT, "tokens": tokens, "rows": rows}


def reply(model, vocabulary, question):
    """The greedy reply as steps: what is written ("": the reply ends), the second likeliest, and by how much the first leads before it."""
    if vocabulary.template:
        prompt = vocabulary.special(render(vocabulary, [("system", SYSTEM), ("user", question_prompt(question, True))]))
    else:
        prompt = [vocabulary.bos] * vocabulary.add_bos + vocabulary.plain(question_prompt(question, False))
    text_of = lambda token: "" if vocabulary.types[token] == CONTROL else vocabulary.piece(token)
    steps, read = [], model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
    while len(steps) < REPLY_TOKENS:
        (best, second), (token, other) = (part.tolist() for part in read.logits[0, -1].topk(2))
        steps.append([text_of(token), text_of(other), round(best - second, 3)])
        if not steps[-1][0] or (not vocabulary.template and "\n" in steps[-1][0]):
            break
        read = model(torch.tensor([[token]]), past_key_values=read.past_key_values)
    return {"question": question, "prompt_tokens": len(prompt), "steps": steps}


def save(path, reference):
    """JSON of which people can read a difference: a line for each row of an array of arrays or objects."""
    text = json.dumps(reference, indent=1, ensure_ascii=True)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: "[" + re.sub(r"\s*\n\s*", " ", match[1]) + "]", text)
    text = re.sub(r"\[\s+(\[[^{}]*?\])\s+\](?=,?\n)", lambda match: "[" + re.sub(r"\],\n\s+\[", "], [", match[1]) + "]", text)
    with open(path, "w", encoding="ascii") as file:
        file.write(text + "\n")


def main():
    warnings.filterwarnings("ignore")
    torch.set_grad_enabled(False)
    software = ["%s %s" % (m.__name__, m.__version__) for m in (torch, transformers, tokenizers, sentencepiece, jinja2)]
    text = read_text()
    for path in sys.argv[1:]:
        print(path, "vocabulary", file=sys.stderr)
        vocabulary = Vocabulary(gguf.GGUFReader(path))
        tokens = vocabulary.plain(text)
        reference = {
            "file": os.path.basename(path),
            "software": ", ".join(software),
            "text": {"count": len(tokens), "block_sums": block_sums(tokens)},
            "chats": chats(vocabulary),
        }
        print(path, "weights", file=sys.stderr)
        folder, file = os.path.split(path)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
        print(model.config.to_dict(), file=sys.stderr)
        reference["logits"] = logits(model, vocabulary, tokens)
        print(path, "perplexity", file=sys.stderr)
        reference["perplexity"] = perplexity(model, vocabulary, tokens)
        print(path, "replies", file=sys.stderr)
        reference["replies"] = [reply(model, vocabulary, question) for question, _ in QUESTIONS]
        save(os.path.join(HERE, file.removesuffix(".gguf") + ".json"), reference)


if __name__ == "__main__":
    main()
