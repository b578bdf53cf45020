"""Failures: each is the exception that fits, with the library's message, and leaves the session as it was."""
import os
import tempfile
import unittest

import support

support.need("numpy")
import terse


class Errors(unittest.TestCase):
    def setUp(self):
        self.model = support.model()

    def check(self, kinds, pattern, work):
        with self.assertRaisesRegex(terse.Error, pattern) as raised:
            work()
        for kind in kinds:
            self.assertIsInstance(raised.exception, kind)
        return raised.exception

    def test_a_missing_file(self):
        error = self.check((terse.FileError, OSError), "no-such.gguf.*No such file", lambda: terse.Model("/no-such.gguf"))
        self.assertIsNone(error.offset)

    def test_a_damaged_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "damaged.gguf")
            with open(os.path.join(support.ROOT, "models", "lab-27m-q8_0.gguf"), "rb") as good, open(path, "wb") as file:
                file.write(good.read(100))
            error = self.check((terse.FormatError, ValueError), "damaged.gguf", lambda: terse.Model(path))
            self.assertLessEqual(error.offset, 100)

    def test_an_argument(self):
        self.check((terse.ArgumentError, ValueError), "unknown KV method 'zip'", lambda: self.model.session("zip"))
        self.check((terse.ArgumentError,), "vocabulary", lambda: self.model.session().prefill([10**6]))
        self.check((terse.ArgumentError,), "", lambda: self.model.session().prefill([]))

    def test_what_is_unsupported(self):
        session = self.model.session("streaming-64")
        session.prefill(support.article()[:2000])
        self.check((terse.UnsupportedError, NotImplementedError), "evict", lambda: session.truncate(300))
        self.check((terse.UnsupportedError,), "nothere", lambda: terse.Model(device="nothere"))

    def test_a_spent_budget(self):
        model = terse.Model(threads=1, kv_budget=1 << 20)
        session = model.session("f16")
        self.check((terse.OutOfMemoryError, MemoryError), "", lambda: session.prefill(support.article()[:2000]))
        self.assertEqual(len(session), 0)
        session.prefill(support.PROSE)
        self.assertGreater(len(session), 0)

    def test_a_full_context(self):
        session = self.model.session(context=8)
        self.check((terse.ContextError, ValueError), "8", lambda: session.prefill(support.PROSE))
        self.assertEqual(len(session), 0)

    def test_another_models_state(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            session = self.model.session("q8_0")
            session.prefill(support.PROSE)
            session.save(path)
            self.check((terse.ArgumentError,), "", lambda: self.model.load(path, kv="f16"))
            with open(path, "r+b") as file:
                file.truncate(200)
            self.check((terse.FormatError,), "", lambda: self.model.load(path))

    def test_an_unknown_prefill_mode(self):
        with self.assertRaisesRegex(ValueError, "exact, compressed"):
            self.model.session(prefill="fast")


if __name__ == "__main__":
    support.main()
