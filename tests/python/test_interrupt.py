"""Ctrl-C, cancellation and threads. An interrupt is sent when the work is known to be under way, so that no test goes by time."""
import ctypes
import gc
import os
import signal
import sys
import threading
import unittest
import unittest.mock

import support

support.need("numpy")
import numpy as np
import terse


def interrupt():
    """Sends what Ctrl-C sends."""
    os.kill(os.getpid(), signal.SIGINT)


class Interrupts(unittest.TestCase):
    def setUp(self):
        self.model = support.model()
        self.tokens = self.model.tokenize(support.article())[:6000]

    def interrupt_in_a_step(self, session, work):
        """Runs work() and interrupts it from another thread when a prompt of the session is under way."""
        done = threading.Event()

        def watch():
            while not session._reading and not done.wait(0.001):
                pass
            done.wait(0.2)
            if not done.is_set():
                interrupt()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with self.assertRaises(KeyboardInterrupt):
                work()
                done.set()
        finally:
            done.set()
            watcher.join()

    def check_as_it_was(self, session, before):
        self.assertEqual(len(session), len(before))
        same = self.model.session(session.kv)
        if len(before):
            np.testing.assert_array_equal(session.logits(), before.logits())
            same.prefill(self.tokens[: len(before)])
        session.prefill(self.tokens[len(before):len(before) + 20])
        same.prefill(self.tokens[len(before):len(before) + 20])
        np.testing.assert_array_equal(session.logits(), same.logits())

    def test_a_prompt_stops_and_the_session_is_as_it_was(self):
        for read in 0, 300:
            with self.subTest(read=read):
                session = self.model.session("f16")
                if read:
                    session.prefill(self.tokens[:read])
                before = session.fork()
                self.interrupt_in_a_step(session, lambda: session.prefill(self.tokens))
                self.check_as_it_was(session, before)

    def test_a_prompt_with_rows_stops(self):
        session = self.model.session("f16")
        self.interrupt_in_a_step(session, lambda: session.prefill_logits(self.tokens, first=10))
        self.check_as_it_was(session, self.model.session("f16"))

    def test_an_interrupt_while_rows_come_is_not_lost(self):
        session = self.model.session("f16")
        with self.assertRaises(KeyboardInterrupt):
            threading.Timer(0.05, interrupt).start()
            while True:
                session.decode_logits(self.tokens[:64])
                session.truncate(0)
        self.assertGreater(len(session.generate(support.PROSE, max_tokens=4)), 0)

    def test_an_interrupt_that_interrupts_the_cleaning_up(self):
        session = self.model.session("f16")
        with self.assertRaises(KeyboardInterrupt), unittest.mock.patch("terse.session._drop_prompt", side_effect=[None, KeyboardInterrupt]):
            session.prefill(self.tokens, progress=lambda part: interrupt())
        self.check_as_it_was(session, self.model.session("f16"))

    def test_generating_stops_between_tokens(self):
        session = self.model.session("f16")
        pieces = []
        with self.assertRaises(KeyboardInterrupt):
            for piece in session.generate(support.PROSE, temperature=0, stream=True):
                pieces.append(piece)
                if len(pieces) == 5:
                    interrupt()
        length = len(session)
        self.assertLess(length, 60)
        session.generate(max_tokens=3, temperature=0)
        self.assertEqual(len(session), length + 3)

    def test_progress_may_stop_a_prompt(self):
        session, parts = self.model.session("f16"), []

        def stop(part):
            parts.append(part)
            if len(parts) == 2:
                raise RuntimeError("enough")

        with self.assertRaisesRegex(RuntimeError, "enough"):
            session.prefill(self.tokens, progress=stop)
        self.check_as_it_was(session, self.model.session("f16"))
        self.assertTrue(0 < parts[0] < parts[1] < 1)

    def test_progress_ends_at_1(self):
        parts = []
        self.model.session("f16").prefill(self.tokens[:500], progress=parts.append)
        self.assertEqual((parts, parts[-1]), (sorted(parts), 1))

    def test_cancel_on_another_thread(self):
        session = self.model.session("f16")
        with self.assertRaises(terse.CancelledError):
            session.prefill(self.tokens, progress=lambda part: session.cancel())
        self.check_as_it_was(session, self.model.session("f16"))


class Threads(unittest.TestCase):
    def test_calls_release_the_gil(self):
        """Where Python itself switches threads once in a minute, another thread runs during a call only if that releases the GIL."""
        session, tokens = support.model().session("f16"), support.model().tokenize(support.article())[:2000]
        begins, ran, seen = threading.Event(), [], []

        def read():
            begins.set()
            session.prefill(tokens)
            seen.extend(ran)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        try:
            thread = threading.Thread(target=read)
            thread.start()
            begins.wait()
            ran.append(True)
            thread.join()
        finally:
            sys.setswitchinterval(interval)
        self.assertEqual(seen, [True])

    def test_threads_take_turns(self):
        model = support.model()
        prompts = [support.PROSE[: 20 + 7 * i] for i in range(4)]
        alone = [model.session("q8_0").generate(prompt, max_tokens=12, temperature=0) for prompt in prompts]
        texts = [""] * len(prompts)

        def write(i):
            texts[i] = model.session("q8_0").generate(prompts[i], max_tokens=12, temperature=0)

        threads = [threading.Thread(target=write, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, alone)

    def test_sessions_may_be_dropped_while_others_compute(self):
        model = terse.Model(threads=2)
        session = model.session("f16")
        session.prefill(support.PROSE)
        stop = threading.Event()

        def drop():
            while not stop.is_set():
                fork = session.fork()
                del fork
                gc.collect(0)

        thread = threading.Thread(target=drop)
        thread.start()
        other = model.session("f16").generate(support.PROSE, max_tokens=40, temperature=0)
        stop.set()
        thread.join()
        self.assertEqual(other, model.session("f16").generate(support.PROSE, max_tokens=40, temperature=0))
        del session
        gc.collect()
        self.assertEqual(model.kv_bytes, 0)

    def test_the_garbage_collector_may_run_during_a_call(self):
        """A session that is found to be garbage while its own thread computes is released when the call has ended."""
        model = terse.Model(threads=1)
        session, other = model.session("f16"), model.session("f16")
        other.prefill(support.PROSE)
        other.cycle = other
        del other
        calls, copy = [], ctypes.memmove

        def collect(*arguments):
            gc.collect()
            calls.append(len(model._engine._dropped))
            copy(*arguments)

        with unittest.mock.patch("ctypes.memmove", collect):
            thread = threading.Thread(target=lambda: session.decode_logits([1, 2, 3]), daemon=True)
            thread.start()
            thread.join(support.PATIENCE)
        self.assertFalse(thread.is_alive())
        self.assertEqual(calls, [1, 1, 1])  # it waited
        session.close()
        self.assertEqual(model.kv_bytes, 0)


if __name__ == "__main__":
    support.main()
