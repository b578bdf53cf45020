"""Replies while a file is written: a disk that takes its time holds nobody up but the one whose file it is."""
import os
import tempfile
import threading
import time
import unittest

from served import COMMAND, PATIENCE, Server, document, main

COMPLETION = "/v1/completions"
HOLD = os.path.join(os.path.dirname(COMMAND or ""), "hold_fsync.so")


@unittest.skipUnless(os.path.exists(HOLD), "hold_fsync is not built")
class Saving(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.hold = folder.name, os.path.join(folder.name, "hold")
        self.states = os.path.join(folder.name, "states")

    def start(self, *options):
        set_here = {"LD_PRELOAD": HOLD, "HOLD_FSYNC": self.hold, "ASAN_OPTIONS": "verify_asan_link_order=0"}
        before = {name: os.environ.get(name) for name in set_here}
        os.environ.update(set_here)
        try:
            server = Server(*options)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        self.addCleanup(server.stop)
        self.addCleanup(self.release)
        return server

    def hold_disk(self):
        with open(self.hold, "w"):
            pass

    def release(self):
        for name in (self.hold, self.hold + ".held"):
            if os.path.exists(name):
                os.remove(name)

    def in_background(self, call):
        """Makes a call on a thread of its own; its value is in the list that is returned, when it has come back."""
        values = []
        thread = threading.Thread(target=lambda: values.append(call()))
        thread.start()
        self.addCleanup(thread.join)
        return values, thread

    def until(self, condition):
        for _ in range(PATIENCE * 100):
            if condition():
                return
            time.sleep(0.01)
        self.fail("it never happened")

    def is_held(self):
        return os.path.exists(self.hold + ".held")

    def complete(self, server, prompt, **fields):
        status, _, reply = server.post(COMPLETION, {"prompt": prompt, "max_tokens": 20, "temperature": 0, **fields})
        self.assertEqual(status, 200, reply)
        return reply

    def test_a_slot_is_saved_beside_replies(self):
        server = self.start("--parallel", "2", "--slot-save-path", self.states)
        self.complete(server, document(7, size=3000))
        self.hold_disk()
        saved, thread = self.in_background(lambda: server.post("/slots/0?action=save", {"filename": "x"}))
        self.until(self.is_held)
        events = list(server.stream(COMPLETION, {"prompt": "Once upon a time", "max_tokens": 40, "logit_bias": {"0": -100}}))
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(self.complete(server, document(8, size=2000))["usage"]["completion_tokens"], 20)
        self.assertEqual(saved, [])  # all this while the file is being written
        self.release()
        thread.join()
        self.assertEqual((saved[0][0], saved[0][2]["n_written"]), (200, os.path.getsize(os.path.join(self.states, "x"))))

    def test_a_reply_is_saved_beside_others(self):
        """With one slot: it is free when a reply is written, though its end comes when its file is there. Short replies have none, and slots' files
        are not those of replies."""
        server = self.start("--parallel", "1", "--state-dir", self.states)
        self.hold_disk()
        long, thread = self.in_background(lambda: self.complete(server, document(7, size=3000)))
        self.until(self.is_held)
        self.assertEqual(self.complete(server, "Once upon a time")["usage"]["completion_tokens"], 20)
        events = server.stream(COMPLETION, {"prompt": document(8, size=2000), "max_tokens": 20, "logit_bias": {"0": -100}})
        other, other_thread = self.in_background(lambda: list(events))
        self.until(lambda: b"terse_written_tokens_total 60\n" in server.get("/metrics")[2])
        self.until(lambda: not server.get("/slots")[2][0]["is_processing"])
        self.assertEqual((long, other, os.listdir(self.states)), ([], [], []))
        self.release()
        thread.join()
        other_thread.join()
        self.assertEqual((long[0]["usage"]["completion_tokens"], other[0][-1]), (20, "[DONE]"))
        self.assertEqual(len(os.listdir(self.states)), 2)

    def test_a_client_that_leaves_meanwhile(self):
        server = self.start("--parallel", "2", "--state-dir", self.states)
        self.hold_disk()
        events = server.stream(COMPLETION, {"prompt": document(7, size=3000), "max_tokens": 4, "n": 2, "logit_bias": {"0": -100}})
        next(events)
        self.until(self.is_held)
        events.close()
        self.assertEqual(self.complete(server, "Once upon a time")["usage"]["completion_tokens"], 20)
        self.release()
        self.assertEqual((server.stop(), len(os.listdir(self.states))), (0, 1))

    def test_a_server_that_stops_waits_for_the_disk(self):
        server = self.start("--parallel", "1", "--state-dir", self.states)
        self.hold_disk()
        reply, thread = self.in_background(lambda: self.complete(server, document(7, size=3000)))
        self.until(self.is_held)
        server.signal()
        self.until(lambda: server.get("/health")[0] == 503)
        time.sleep(3)  # longer than clients have to take the ends of their replies
        self.release()
        thread.join()
        self.assertEqual(reply[0]["usage"]["completion_tokens"], 20)
        self.assertEqual((server.wait(), len(os.listdir(self.states))), (0, 1))

    def test_what_cannot_be_written_is_told(self):
        server = self.start("--parallel", "1", "--state-dir", self.states)
        self.complete(server, document(7, size=3000))
        os.rename(self.states, self.states + ".gone")
        status, _, reply = server.post("/slots/0?action=save", {"filename": "x"})
        self.assertNotEqual(status, 200)
        self.assertIn("cannot be written", reply["error"]["message"])
        self.complete(server, document(9, size=3000))  # the reply is good all the same
        self.assertEqual(server.stop(), 0)
        self.assertIn("--state-dir", server.rest)


if __name__ == "__main__":
    main()
