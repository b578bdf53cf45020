"""Profiles that are learned in the background of terse run and terse serve. `python3 test_learner.py build/bin/terse [TEST...]`."""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from terminal import Terminal

COMMAND = os.path.abspath(sys.argv[1])
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/models/llama.gguf")
BEGINS = re.compile(r"is being\s+learned in the\s+background \(.*kill (\d+)", re.S)
LIMIT = 120


def alive(pid):
    """Also while it is stopped; a zombie does not count."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stop(pid):
    """Once it is the learner: until then it is a copy of the command, and holds what that has open."""
    end = time.monotonic() + LIMIT
    while alive(pid) and time.monotonic() < end:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            if b"calibrate" in command.read():
                os.kill(pid, signal.SIGSTOP)
                return
        time.sleep(0.002)


class Learner(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = folder.name
        self.environment = {"OMP_WAIT_POLICY": "passive", "XDG_CACHE_HOME": self.cache, "HOME": self.cache}

    def profiles(self):
        folder = os.path.join(self.cache, "terse")
        return [name for name in os.listdir(folder) if name.endswith(".gguf")] if os.path.isdir(folder) else []

    def until(self, what, why):
        end = time.monotonic() + LIMIT
        while not what():
            self.assertLess(time.monotonic(), end, why)
            time.sleep(0.05)

    def run_at_terminal(self, *options):
        terminal = Terminal([COMMAND, "run", "-m", MODEL, "-p", "the", *options], columns=400, environment=self.environment)
        self.addCleanup(terminal.kill)
        return terminal

    def learner_of(self, terminal):
        """The process, stopped before it can have learned much."""
        terminal.expect("the next start")
        pid = int(BEGINS.search(terminal.text).group(1))
        stop(pid)
        self.addCleanup(lambda: alive(pid) and os.kill(pid, signal.SIGKILL))
        return pid

    def test_answers_first_and_takes_the_profile_at_the_next_start(self):
        t = self.run_at_terminal("-n", "2")
        pid = self.learner_of(t)
        self.assertEqual(t.end(), 0)
        self.assertIn(f"still being learned in the background by process {pid}; kill {pid} ends that", t.text)
        self.assertIn("(terse-4)", t.text)
        self.assertEqual(self.profiles(), [])

        second = self.run_at_terminal("-n", "2")  # which does not learn it again
        self.assertEqual(second.end(), 0)
        self.assertIn("another process is learning one", second.text)

        os.kill(pid, signal.SIGCONT)
        self.until(lambda: not alive(pid), "the learner does not end")
        self.assertEqual(len(self.profiles()), 1)
        third = self.run_at_terminal("-n", "2")
        self.assertEqual(third.end(), 0)
        self.assertIn("(terse-4)", third.text)
        self.assertNotIn("profile", third.text)

    def test_an_interrupt_ends_it_with_the_command(self):
        t = self.run_at_terminal("-n", "-1", "--ignore-eos", "-c", "512", "--kv-tail-tokens", "64")
        pid = self.learner_of(t)
        t.interrupt()
        t.end()
        if t.status == 0:
            self.skipTest("the reply had ended before it was interrupted")
        os.kill(pid, signal.SIGCONT)
        self.until(lambda: not alive(pid), "the learner goes on")
        self.assertEqual(self.profiles(), [])

    def test_nothing_is_learned_where_that_is_not_wanted(self):
        t = self.run_at_terminal("-n", "2", "--no-auto-calibrate")
        self.assertEqual(t.end(), 0)
        self.assertIn("(terse-4)", t.text)
        self.assertNotIn("background", t.text)
        done = subprocess.run([COMMAND, "run", "-m", MODEL, "-p", "the", "-n", "2"], env={**os.environ, **self.environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=True)
        self.assertRegex(done.stderr, r"^no profile of llama: terse-4 .*terse calibrate -m \S+ --kv terse-4 \(about .* or more\) learns one")
        self.assertEqual(self.profiles(), [])

    def test_a_server_learns_and_ends_it(self):
        command = [COMMAND, "serve", "-m", MODEL, "--port", "0"]
        with subprocess.Popen(command, env={**os.environ, **self.environment}, stderr=subprocess.PIPE, text=True) as server:
            self.addCleanup(server.kill)
            lines = ""
            while "try: curl" not in lines:
                lines += server.stderr.readline()
            pid = int(BEGINS.search(lines).group(1))
            stop(pid)
            if not alive(pid):
                self.skipTest("the profile was learned before the learner could be stopped")
            server.send_signal(signal.SIGTERM)
            server.stderr.read()
            self.assertEqual(server.wait(LIMIT), 0)
        os.kill(pid, signal.SIGCONT)
        self.until(lambda: not alive(pid), "the learner goes on")
        self.assertEqual(self.profiles(), [])


class Order(unittest.TestCase):
    """Errors that can be found at once are found before anything is learned."""

    def refused(self, pattern, *arguments):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "XDG_CACHE_HOME": cache, "OMP_WAIT_POLICY": "passive"}
            done = subprocess.run([COMMAND, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=LIMIT, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, pattern)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertEqual(os.listdir(cache), [])

    def test_run(self):
        method = ("run", "-m", MODEL, "--kv", "antkv-1", "--auto-calibrate")
        self.refused(r"the prompt has \d+ tokens and the context room for 16", *method, "-p", "the cat " * 40, "-c", "16")
        self.refused(r"cannot write /nonexistent/x: No such file", *method, "-p", "the", "--save-state", "/nonexistent/x")
        self.refused(r"omit --prefill compressed", *method, "-p", "the", "--prefill", "compressed")

    def test_serve(self):
        method = ("serve", "-m", MODEL, "--kv", "antkv-1", "--auto-calibrate")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused("cannot listen at 127.0.0.1", *method, "--port", str(taken.getsockname()[1]))
        self.refused("--state-dir, /nonexistent/x", *method, "--port", "0", "--state-dir", "/nonexistent/x")

    def test_what_takes_minutes_is_not_begun_unasked(self):
        self.refused(r"antkv-1 needs a codebook .*make it with terse calibrate --kv antkv-1 \(about .* or more\), or now with --auto-calibrate$",
                     "run", "-t", "1", "-p", "x", "--kv", "antkv-1")

    def test_calibrate_into_a_place_that_cannot_be_written(self):
        environment = {**os.environ, "XDG_CACHE_HOME": "/dev/null/none"}
        done = subprocess.run([COMMAND, "calibrate", "-m", MODEL, "--kv", "terse-4"], env=environment, capture_output=True, text=True,
                              timeout=LIMIT, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^terse calibrate: cannot write /dev/null/none/\S+: Not a directory$")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
