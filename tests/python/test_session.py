"""Sessions: what they generate beside what the command generates, logits, forks, saved states."""
import gc
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import support

support.need("numpy")
import numpy as np
import terse
from terse import _library


def keep_costs(model, folder):
    """Keeps the built-in model's profile in the user's cache directory, as if its rates had been measured."""
    codebook = terse.Codebook(_library.BUILT_IN_PROFILE)
    rates = (4, 0.001, 0), (3, 0.004, 0), (2, 0.02, 0), (1, 0.2, 0)
    costs = (_library.structs["terse_rate_cost"] * len(rates))(*rates)
    _library.call(_library.c.terse_codebook_set_rate_costs, codebook._handle.pointer, costs, len(rates), b"a text", 100)
    os.makedirs(os.path.join(folder, "terse"))
    path = os.path.join(folder, "terse", "terse-%016x.gguf" % model.info.norms_fingerprint)
    _library.call(_library.c.terse_codebook_save, codebook._handle.pointer, path.encode())


def greedy(session, prompt=None, n=24):
    return session.generate(prompt, max_tokens=n, temperature=0)


class Generating(unittest.TestCase):
    def setUp(self):
        self.model = support.model()

    def test_the_text_is_the_commands(self):
        for kv in "f16", "terse-2", "streaming-64":
            with self.subTest(kv=kv):
                written = support.command("run", "-t", str(support.THREADS), "-p", support.PROSE, "-n", "24", "--temp", "0", "--kv", kv)
                self.assertEqual(greedy(self.model.session(kv), support.PROSE), written)

    def test_a_sampled_text_is_the_commands(self):
        written = support.command("run", "-t", str(support.THREADS), "-p", support.PROSE, "-n", "24", "--temp", "1.2", "--seed", "7", "--top-k", "50")
        self.assertEqual(self.model.session().generate(support.PROSE, max_tokens=24, temperature=1.2, seed=7, top_k=50), written)

    def test_a_stream_is_the_text_in_pieces(self):
        session = self.model.session("f16")
        lengths, pieces = [], []
        for piece in session.generate(support.PROSE, max_tokens=16, temperature=0, stream=True):
            pieces.append(piece)
            lengths.append(len(session))
        self.assertEqual("".join(pieces), greedy(self.model.session("f16"), support.PROSE, 16))
        self.assertEqual(lengths, sorted(set(lengths)))
        self.assertGreater(len(pieces), 8)

    def test_seeds(self):
        texts = [self.model.session().generate(support.PROSE, max_tokens=16, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_a_stop_string_ends_the_text_before_it(self):
        whole = greedy(self.model.session(), support.PROSE)
        stop = whole[10:16]
        session = self.model.session()
        text = session.generate(support.PROSE, max_tokens=24, temperature=0, stop=[stop])
        self.assertEqual(text, whole[: whole.index(stop)])
        self.assertEqual(session.finish_reason, "stop")

    def test_the_length_of_a_text(self):
        session = self.model.session()
        greedy(session, support.PROSE, 5)
        self.assertEqual(session.finish_reason, "length")
        self.assertEqual(len(session), len(self.model.tokenize(support.PROSE)) + 5)

    def test_a_full_context_ends_the_text(self):
        session = self.model.session(context=24)
        session.generate(support.PROSE, temperature=0)
        self.assertEqual((session.finish_reason, len(session)), ("length", 24))

    def test_a_bias(self):
        token = int(self.model.tokenize(" elephant", begin=False)[0])
        session = self.model.session()
        session.prefill(support.PROSE)
        session.set_sampling(temperature=0, logit_bias={token: 1000})
        self.assertEqual(session.sample(), token)

    def test_an_unknown_setting_is_refused(self):
        with self.assertRaisesRegex(TypeError, "temprature"):
            self.model.session().generate(support.PROSE, temprature=0)

    def test_text_and_tokens(self):
        text = "Grüße aus 東京, 5 °C"
        tokens = self.model.tokenize(text, begin=False)
        self.assertEqual(tokens.dtype, np.int32)
        self.assertEqual(self.model.detokenize(tokens), text)
        from_tokens = greedy(self.model.session(), self.model.tokenize(support.PROSE))
        self.assertEqual(from_tokens, greedy(self.model.session(), support.PROSE))


class Logits(unittest.TestCase):
    def setUp(self):
        self.model = support.model()
        self.tokens = self.model.tokenize(support.PROSE)

    def test_there_are_none_before_the_first_token(self):
        self.assertIsNone(self.model.session().logits())

    def test_rows_of_a_prompt(self):
        session = self.model.session()
        rows = session.prefill_logits(self.tokens, first=3)
        self.assertEqual((rows.shape, rows.dtype), ((len(self.tokens) - 3, self.model.info.vocabulary), np.float32))
        np.testing.assert_array_equal(rows[-1], session.logits())
        shorter = self.model.session()
        shorter.prefill(self.tokens[:6])
        np.testing.assert_allclose(rows[2], shorter.logits(), atol=0.05)
        self.assertEqual(rows[2].argmax(), shorter.logits().argmax())

    def test_rows_of_a_step(self):
        session, single = self.model.session(), self.model.session()
        session.prefill(self.tokens[:4])
        single.prefill(self.tokens[:4])
        rows = session.decode_logits(self.tokens[4:7])
        self.assertEqual(rows.shape, (3, self.model.info.vocabulary))
        for row, token in zip(rows, self.tokens[4:7]):
            single.decode([token])
            np.testing.assert_allclose(row, single.logits(), atol=0.05)

    def test_a_copy_stays_as_it_is(self):
        session = self.model.session()
        session.prefill(self.tokens)
        logits = session.logits()
        kept = logits.copy()
        greedy(session)
        np.testing.assert_array_equal(logits, kept)

    def test_a_view_is_the_sessions_memory_and_outlives_the_session(self):
        session = self.model.session()
        session.prefill(self.tokens)
        view = session.logits(copy=False)
        self.assertEqual(view.ctypes.data, session.logits(copy=False).ctypes.data)
        self.assertFalse(view.flags.writeable)
        np.testing.assert_array_equal(view, session.logits())
        kept, part = view.copy(), view[100:200]
        session.close()
        del session, view
        gc.collect()
        others = [self.model.session() for _ in range(8)]
        for other in others:
            other.prefill(self.tokens[:5])
        np.testing.assert_array_equal(part, kept[100:200])

    def test_a_view_keeps_the_bytes_of_its_session(self):
        model = terse.Model(threads=1)
        session = model.session("f16")
        session.prefill(self.tokens)
        taken = model.kv_bytes
        view = session.logits(copy=False)
        session.close()
        self.assertEqual(model.kv_bytes, taken)
        del view
        self.assertEqual(model.kv_bytes, 0)


class Sequences(unittest.TestCase):
    def setUp(self):
        self.model = support.model()

    def test_a_fork_goes_its_own_way(self):
        session = self.model.session("q8_0")
        session.prefill(support.article()[:2500])
        fork = session.fork()
        self.assertEqual(fork.cache.shared, session.cache.codes)
        self.assertGreater(fork.cache.shared, 0)
        there = greedy(fork)
        self.assertEqual(len(fork), len(session) + 24)
        self.assertEqual(greedy(session), there)

    def test_a_fork_outlives_its_session(self):
        session = self.model.session("q8_0")
        session.prefill(support.PROSE)
        fork = session.fork()
        session.close()
        del session
        self.assertEqual(greedy(fork), greedy(self.model.session("q8_0"), support.PROSE))

    def test_a_saved_session_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            session = self.model.session("terse-3")
            session.generate(support.PROSE, max_tokens=8, temperature=1, seed=3)
            session.save(path)
            loaded = self.model.load(path)
            self.assertEqual((loaded.kv, len(loaded)), ("terse-3", len(session)))
            np.testing.assert_array_equal(loaded.logits(), session.logits())
            self.assertEqual(loaded.generate(max_tokens=16), session.generate(max_tokens=16))

    def test_truncate_and_reset(self):
        session = self.model.session("f16")
        tokens = self.model.tokenize(support.PROSE)
        session.prefill(tokens)
        session.truncate(5)
        self.assertEqual(len(session), 5)
        self.assertIsNone(session.logits())
        session.reset()
        self.assertEqual(greedy(session, support.PROSE), greedy(self.model.session("f16"), support.PROSE))

    def test_a_closed_session_is_refused(self):
        with self.model.session() as session:
            session.prefill(support.PROSE)
        with self.assertRaisesRegex(ValueError, "closed"):
            session.sample()

    def test_sessions_are_released(self):
        model = terse.Model(threads=1)
        for _ in range(3):
            session = model.session("f16")
            session.prefill(support.PROSE)
        self.assertGreater(model.kv_bytes, 0)
        del session
        gc.collect()
        self.assertEqual(model.kv_bytes, 0)

    def test_cycles_are_released_in_any_order(self):
        """The garbage collector finalizes the objects of a cycle in any order; C's objects must go sessions first. A child process, since a wrong order
        corrupts its memory: it would end by a signal."""
        program = """
import gc, terse
for i in range(8):
    model = terse.Model(threads=1)
    parts = [model, model.session("terse-4"), model.session("f16")]
    parts[1].prefill([1, 2, 3])
    parts += [parts[1].fork(), model._engine, model._engine._handle, model._handle, parts[1]._handle]
    cycle = parts[-1 - i % 4:] + parts
    cycle.append(cycle)
    for part in parts[:1]: part.cycle = cycle
    del model, parts, cycle, part
    gc.collect()
model = terse.Model(threads=1)
session = model.session()
def keeps_globals(): return session
"""
        subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ, MALLOC_PERTURB_="165"))

    def test_counters(self):
        session = self.model.session()
        session.generate(support.PROSE, max_tokens=4, temperature=0)
        counters = session.counters()
        self.assertEqual((counters.prefill_tokens, counters.decode_tokens), (len(self.model.tokenize(support.PROSE)), 4))
        self.assertGreater(counters.prefill_seconds, 0)


class Devices(unittest.TestCase):
    PLUGINS = os.path.join(os.path.dirname(os.path.dirname(support.COMMAND or "")), "plugins")

    @unittest.skipUnless(os.path.exists(os.path.join(PLUGINS, "libterse-mock.so")), "the plug-in of the tests is not built")
    def test_a_backend_of_a_plug_in(self):
        with unittest.mock.patch.dict(os.environ, TERSE_PLUGIN_PATH=self.PLUGINS):
            model = terse.Model(device="mock", threads=support.THREADS)
            self.assertEqual(model.device, "mock")
            self.assertEqual(greedy(model.session("f16"), support.PROSE), greedy(support.model().session("f16"), support.PROSE))

    def test_the_processor(self):
        model = support.model()
        self.assertEqual((model.device, model.threads), ("cpu", support.THREADS))


class Caches(unittest.TestCase):
    def setUp(self):
        self.model = support.model()

    def test_a_report_adds_up_and_was_foretold(self):
        for kv in "f16", "q4_0", "terse-2":
            with self.subTest(kv=kv):
                session = self.model.session(kv)
                session.prefill(self.model.tokenize(support.article())[:700])
                report = session.cache
                self.assertEqual((report.tokens, report.kept), (700, 700))
                self.assertEqual(report.resident, report.codes + report.exact + report.window + report.tables)
                self.assertEqual(self.model.cache_bytes(kv, 700).resident, report.resident)

    def chosen(self, kv, folder):
        """What the command and the package choose, where `folder` is the user's cache directory."""
        said = support.run_command("run", "-t", "1", "-p", "Hello there", "-n", "1", "-c", "8192", "--kv", kv, cache=folder).stderr
        with unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
            return re.search(r"KV cache (\S+): ", said)[1], self.model.session(kv, context=8192).kv

    def test_automatic_choice_is_the_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            for kv, method in ("auto", "terse-4"), ("auto:30M", None):
                with self.subTest(kv=kv):
                    ours, theirs = self.chosen(kv, folder)
                    self.assertEqual(ours, theirs)
                    self.assertIn(method, (ours, None))
            keep_costs(self.model, folder)
            for kv, method in ("auto", "terse-3"), ("auto:0.02", "terse-2"), ("auto:1e-4", "terse-8"), ("auto:30M", None):
                with self.subTest(kv=kv, costs=True):
                    ours, theirs = self.chosen(kv, folder)
                    self.assertEqual(ours, theirs)
                    self.assertIn(method, (ours, None))

    def test_automatic_choice_refuses_what_it_cannot_read(self):
        for kv in "auto:", "auto:little", "auto:5Q":
            with self.subTest(kv=kv), self.assertRaisesRegex(ValueError, "auto:0.02"):
                self.model.session(kv)
        with self.assertRaisesRegex(ValueError, "lower -c"):
            self.model.session("auto:20M", context=8192)

    def test_a_budget_lowers_pages(self):
        model = terse.Model(threads=1, kv_budget=6 << 20)
        self.assertIsNone(terse.Model(threads=1).session().cache.rates or None)
        tokens = list(model.tokenize("One thing leads to another. " * 600))[:1900]
        with model.session(kv="auto:min=terse-2") as session:
            session.prefill(tokens)
            rates = session.cache.rates
        self.assertEqual(max(rates), 4)
        self.assertEqual(min(rates), 2)
        self.assertGreater(rates[2], 0)
        with self.assertRaisesRegex(terse.Error, "budget"):
            terse.Model(threads=1).session(kv="auto:min=terse-2")

    def test_options_beside_a_method(self):
        tokens = self.model.tokenize(support.article())[:600]
        plain, mixed = self.model.session("q8_0"), self.model.session(terse.Cache("q8_0", value_type="q4_0", tail_tokens=0))
        plain.prefill(tokens)
        mixed.prefill(tokens)
        self.assertLess(mixed.cache.resident, 0.8 * plain.cache.resident)
        reading = self.model.session(terse.Cache("q8_0", read=64))
        reading.prefill(tokens)
        reading.decode([5])
        plain.decode([5])
        self.assertLess(reading.counters().attention_bytes, 0.7 * plain.counters().attention_bytes)

    def test_methods(self):
        names = [method.name for method in terse.methods()]
        self.assertIn("terse-N", names)
        self.assertIn("f16", names)

    def test_a_method_that_learns_says_what_it_lacks(self):
        with self.assertRaisesRegex(terse.Error, "codebook"):
            self.model.session("antkv-1")


if __name__ == "__main__":
    support.main()
