"""The examples, on a small text: each finds the fact in it, or makes its table."""
import contextlib
import importlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

import support

support.need("numpy")
sys.path.insert(0, os.path.join(support.ROOT, "bindings", "python", "examples"))
QUESTION = "What is the access code for the merry lantern?"
ANSWER = "The access code for the merry lantern is 4071826."


class Examples(unittest.TestCase):
    def run_example(self, name, *arguments):
        text = support.article()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "document.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("%s\n%s\n%s" % (text[:1000], ANSWER, text[2000:4000]))
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                result = importlib.import_module(name).main(path, *arguments)
        return result, out.getvalue()

    def test_ask_document(self):
        _, printed = self.run_example("ask_document", QUESTION)
        self.assertTrue(printed.startswith(ANSWER + "\n"), printed)
        self.assertIn("MiB of KV cache with terse-4", printed)

    def test_compare_methods(self):
        rows, printed = self.run_example("compare_methods", os.path.join(support.ROOT, "models", "lab-27m-q8_0.gguf"), "512")
        means = {row.kv: row.mean for row in rows}
        self.assertLess(means["q8_0"], means["q4_0"])
        self.assertLess(means["terse-4"], means["terse-2"])
        self.assertEqual(len(printed.splitlines()), len(rows) + 1)

    def test_many_questions(self):
        _, printed = self.run_example("many_questions", "-", QUESTION, "Where is it?")
        self.assertIn(ANSWER, printed)
        self.assertRegex(printed, r"Where is it\?\n  .+\n  read \d\d tokens more")

    def test_call_tools(self):
        model = support.model()
        ends = next(token for token in range(model.info.vocabulary) if model.token_ends(token))
        texts = ['<tool_call>\n{"name": "weekday", "arguments": {"date": "1969-07-20"}}\n</tool_call>', "It was a Sunday."]
        tokens = [token for text in texts for token in [*model.tokenize(text, begin=False, special=False), ends]]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch("terse.Session.sample", side_effect=tokens):
            importlib.import_module("call_tools").main("Which day was it?", None, "chatml")
        self.assertEqual(out.getvalue(), "weekday({'date': '1969-07-20'}) = Sunday\nIt was a Sunday.\n")


if __name__ == "__main__":
    support.main()
