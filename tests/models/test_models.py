#!/usr/bin/env python3
"""Public models in terse, held to what other software makes of the same files (make_reference.py; NAME.json beside this file).

    python3 tests/models/test_models.py build/bin/terse MODEL.gguf... [-k PATTERN]     (`make test-models` builds, fetches the models, and runs it)

Of each model: its tokens of a long text, and the text from the tokens; the logits of 64 tokens; perplexity; conversations in its chat format; and
greedy replies, with an f16 cache and with the method that terse takes by itself. Python's standard library alone; minutes on two cores."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

from material import BLOCK, CONVERSATIONS, HERE, QUESTIONS, REPLY_TOKENS, SYSTEM, TEXT, block_sums, question_prompt, read_text

sys.path.insert(0, os.path.join(os.path.dirname(HERE), "serve"))
import served  # noqa: E402

MODELS = [argument for argument in sys.argv[2:] if argument.endswith(".gguf")]
served.PATIENCE = 900  # seconds that a long prompt may take on a machine that is busy

# Both sides take weights as they are stored and compute in single precision; terse reads keys and values of the first half of a window in half
# precision and writes log p in 16 bits (steps of 0.00025).
LOG_P_ERROR = 0.02  # of tokens whose log p is above -8
PERPLEXITY_ERROR = 1e-3
# Decoding multiplies by activations in 8 or 16 bits, the default's keys and values have errors too: how far the likeliest token may lead before
# the one that is written instead.
LEAD = {"f16": 0.3, "default": 0.5}


def terse(*arguments):
    """Returns what the command prints. Its waiting threads sleep, and it finds no profile that a user has."""
    done = subprocess.run([served.COMMAND, *arguments], env=served.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError("terse %s: exit %d: %s" % (" ".join(arguments), done.returncode, done.stderr))
    return done.stdout


class Base:
    """A base file of one window (llama.cpp's format): `tokens`, and log p of a token in one of `rows` rows."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        context, vocabulary, windows = struct.unpack_from("<Iii", self.data, 8)
        assert self.data[:8] == b"_logits_" and windows == 1, (self.data[:8], windows)
        self.tokens = list(struct.unpack_from("<%di" % context, self.data, 20))
        self.start, self.row_bytes = 20 + 4 * context, 2 * ((vocabulary + 1) // 2 * 2 + 4)
        self.rows = (len(self.data) - self.start) // self.row_bytes

    def log_p(self, row, token):
        at = self.start + row * self.row_bytes
        scale, least, code = *struct.unpack_from("<ff", self.data, at), *struct.unpack_from("<H", self.data, at + 8 + 2 * token)
        return scale * code + least


class Checks:
    """The checks of one model; `main` makes a class of it for each. The server has an f16 cache."""

    path = reference = None

    @classmethod
    def setUpClass(cls):
        cls.server = served.Server("-m", cls.path, "--kv", "f16")
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def ask(self, server, path, body):
        status, _, answer = server.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_tokens_of_a_text(self):
        """WikiText's validation text: token by token those of the makers' tokenizer, and the text again from them."""
        text = read_text()
        tokens = self.ask(self.server, "/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]
        for block, (ours, theirs) in enumerate(zip(block_sums(tokens), self.reference["text"]["block_sums"])):
            self.assertEqual(ours, theirs, "the first difference is in tokens %d to %d" % (block * BLOCK, (block + 1) * BLOCK - 1))
        self.assertEqual(len(tokens), self.reference["text"]["count"])
        self.assertEqual(self.ask(self.server, "/detokenize", {"tokens": tokens})["content"], text)

    def test_logits(self):
        """log p of the likeliest tokens, and of some that are less likely, after each of 64 tokens."""
        expected = self.reference["logits"]
        path = os.path.join(self.folder.name, "base")
        terse("perplexity", "-m", self.path, "-f", TEXT, "-c", str(expected["context"]), "--chunks", "1", "--kl-divergence-base", path)
        base = Base(path)
        self.assertEqual(base.tokens, expected["tokens"])
        self.assertEqual(base.rows, len(expected["rows"]))
        pairs = [(row, token, log_p) for row, pairs in enumerate(expected["rows"]) for token, log_p in pairs if log_p > -8]
        worst, checked = max(abs(base.log_p(row, token) - log_p) for row, token, log_p in pairs), len(pairs)
        print("log p of %d tokens: off by %.4f at most" % (checked, worst), file=sys.stderr)
        self.assertGreaterEqual(checked, 64 * 8)
        self.assertLess(worst, LOG_P_ERROR)

    def test_perplexity(self):
        expected = self.reference["perplexity"]
        printed = terse("perplexity", "-m", self.path, "-f", TEXT, "-c", str(expected["context"]), "--chunks", "1")
        found = float(printed[printed.index("PPL = ") :].split()[2])
        print("perplexity %.4f, transformers %.4f" % (found, expected["value"]), file=sys.stderr)
        self.assertAlmostEqual(found / expected["value"], 1, delta=PERPLEXITY_ERROR)

    def test_chats(self):
        """Conversations as text and as tokens; of a model without a template, that chats are refused."""
        expected = self.reference["chats"]
        if expected is None:
            with self.assertRaisesRegex(AssertionError, "(?s)exit 1: .*has no chat template"):
                terse("run", "-m", self.path, "--chat", "-p", "Hello", "-n", "1")
            return
        program = os.path.join(os.path.dirname(served.COMMAND), "render_chat")
        conversations = [chat["messages"] for chat in expected]
        self.assertEqual(conversations, json.loads(json.dumps(CONVERSATIONS)), "make_reference.py was not run again")
        printed = subprocess.run([program, self.path], input=json.dumps(conversations), capture_output=True, text=True, check=True).stdout
        for found, chat in zip(json.loads(printed), expected, strict=True):
            with self.subTest(messages=chat["messages"]):
                self.assertEqual(found["text"], chat["text"])
                self.assertEqual(found["tokens"], chat["tokens"])

    def reply(self, server, question):
        """The prompt's tokens and the greedy reply as steps: what is written ("": it ends), and by how much that leads before the second."""
        options = {"temperature": 0, "max_tokens": REPLY_TOKENS}
        if self.reference["chats"]:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question_prompt(question, True)}]
            answer = self.ask(server, "/v1/chat/completions", {"messages": messages, "logprobs": True, "top_logprobs": 2, **options})
            logs = answer["choices"][0]["logprobs"]["content"]
            steps = [(log["token"], log["top_logprobs"][0]["logprob"] - log["top_logprobs"][1]["logprob"]) for log in logs]
        else:
            answer = self.ask(server, "/v1/completions", {"prompt": question_prompt(question, False), "logprobs": 2, **options})
            logs = answer["choices"][0]["logprobs"]
            tops = [sorted(top.values(), reverse=True) for top in logs["top_logprobs"]]
            steps = [(token, top[0] - top[1]) for token, top in zip(logs["tokens"], tops)]
            end = next((i + 1 for i, token in enumerate(logs["tokens"]) if "\n" in token), len(steps))
            return answer["usage"]["prompt_tokens"], steps[:end]
        ends = answer["choices"][0]["finish_reason"] == "stop"
        return answer["usage"]["prompt_tokens"], steps + [("", math.inf)] * ends

    def test_replies_with_f16(self):
        """Greedy replies about an article are those of transformers, but where its two likeliest tokens are next to each other."""
        for (question, answer), expected in zip(QUESTIONS, self.reference["replies"], strict=True):
            with self.subTest(question=question):
                self.assertEqual(question, expected["question"], "make_reference.py was not run again")
                prompt_tokens, steps = self.reply(self.server, question)
                print("f16: %s" % "".join(text for text, _ in steps), file=sys.stderr)
                self.assertEqual(prompt_tokens, expected["prompt_tokens"])
                for (text, _), (best, second, lead) in zip(steps, expected["steps"]):
                    if text != best:
                        self.assertEqual(text, second)
                        self.assertLess(lead, LEAD["f16"])
                        break
                self.assertIn(answer, "".join(text for text, _ in steps))

    def test_replies_with_the_default(self):
        """Without --kv, and without a profile, replies are right, too, and f16's, but where its two likeliest tokens are near each other."""
        server = served.Server("-m", self.path, "--no-auto-calibrate")
        self.addCleanup(server.stop)
        for question, answer in QUESTIONS:
            with self.subTest(question=question):
                steps = self.reply(server, question)[1]
                print("default: %s" % "".join(text for text, _ in steps), file=sys.stderr)
                for (expected, lead), (text, _) in zip(self.reply(self.server, question)[1], steps):
                    if text != expected:
                        self.assertLess(lead, LEAD["default"], "%r in place of %r" % (text, expected))
                        break
                self.assertIn(answer, "".join(text for text, _ in steps))


def main():
    if not MODELS:
        sys.exit("usage: python3 %s build/bin/terse MODEL.gguf... [-k PATTERN]" % sys.argv[0])
    for path in MODELS:
        name = os.path.basename(path).removesuffix(".gguf")
        with open(os.path.join(HERE, name + ".json"), encoding="ascii") as file:
            reference = json.load(file)
        globals()[name] = type(name, (Checks, unittest.TestCase), {"path": path, "reference": reference, "__module__": "__main__"})
    unittest.main(argv=sys.argv[:1] + [argument for argument in sys.argv[2:] if argument not in MODELS], verbosity=2)


if __name__ == "__main__":
    main()
