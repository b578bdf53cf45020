"""terse run -cnv at a terminal: Ctrl-C, editing, commands. `python3 test_terminal.py build/bin/terse [TEST...]`."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from terminal import Terminal

COMMAND = os.path.abspath(sys.argv[1])
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/wiki_excerpt.txt")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/lab-27m-q8_0.gguf")
NEEDLE = "The access code for the merry lantern is 4071826."
QUESTION = "What is the access code for the merry lantern?\n"
PROMPT = "\r\n> "


def has_editor():
    with open(COMMAND, "rb") as command:
        return b"libedit" in command.read()


class AtTerminal:
    kind = "xterm"

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, *options, before=0):
        """A chat about `before` bytes of text with the needle behind them; none at 0."""
        if before:
            path = os.path.join(self.folder.name, "text")
            with open(TEXT, encoding="utf-8") as text, open(path, "w", encoding="utf-8") as planted:
                planted.write(text.read()[:before] + "\n" + NEEDLE + "\n")
            options += ("-f", path)
        environment = {"OMP_WAIT_POLICY": "passive", "XDG_CACHE_HOME": self.folder.name, "HOME": self.folder.name, "TERM": self.kind}
        terminal = Terminal([COMMAND, "run", "-cnv", "--temp", "0", "--kv", "f16", *options], environment=environment)
        self.addCleanup(terminal.kill)
        terminal.expect(PROMPT)
        return terminal

    def say(self, terminal, line):
        """Types a line and returns the output up to the next prompt, without the line itself, which the terminal shows."""
        terminal.type(line + "\n")
        shown = terminal.expect(PROMPT)[len(line) :].removesuffix("> ")
        return re.sub("[^\n]*\r\x1b\\[K", "", shown).strip()  # bars were taken away

    def leave(self, terminal):
        terminal.type("/exit \r")
        self.assertEqual(terminal.end(), 0)

    def test_interrupt_during_reply(self):
        t = self.start("-n", "4000", "--ignore-eos", before=2000)
        t.type(QUESTION)
        t.expect("4071826")
        t.interrupt()
        t.expect(PROMPT)
        # The session has gone as far as the reply did, and the chat goes on behind it.
        t.type(QUESTION)
        t.expect("4071826")
        t.interrupt()
        t.interrupt()  # impatience is no reason to lose the conversation
        t.expect(PROMPT)
        self.leave(t)

    def test_interrupts_at_the_prompt(self):
        t = self.start()
        t.type("some text")
        t.expect("some text")
        t.interrupt()
        t.expect("Ctrl-C again")
        t.expect(PROMPT)
        self.assertIn("0 tokens", self.say(t, "/kv"))  # the line was dropped; a command makes the count begin anew
        t.interrupt()
        t.expect("Ctrl-C again")
        t.expect(PROMPT)
        t.interrupt()
        self.assertEqual(t.end(), 130)
        self.assertIn("generated 0 tokens", t.text)

    def test_end_of_input_and_signals(self):
        t = self.start()
        t.type(b"\x04")
        self.assertEqual(t.end(), 0)
        t = self.start()
        os.kill(t.pid, signal.SIGTERM)
        t.expect("generated 0 tokens")
        cooked = termios.ICANON | termios.ECHO
        self.assertEqual(termios.tcgetattr(t.fd)[3] & cooked, cooked)
        self.assertEqual(t.end(), 143)

    def test_model_alone(self):
        """terse MODEL.gguf is a chat where somebody sits before it."""
        environment = {"OMP_WAIT_POLICY": "passive", "XDG_CACHE_HOME": self.folder.name, "HOME": self.folder.name, "TERM": self.kind}
        t = Terminal([COMMAND, MODEL, "--temp", "0", "--kv", "f16", "-n", "4"], environment=environment)
        self.addCleanup(t.kill)
        t.expect(PROMPT)
        self.assertTrue(self.say(t, "Hello"))
        self.leave(t)

    def test_no_text(self):
        t = self.start("-n", "4")
        t.type(b"a\xffb\n")
        t.expect("line 1 of standard input is not text")
        t.expect(PROMPT)
        t.type(b"a\xe4\n")
        t.expect("line 2 of standard input is not text")
        t.expect(PROMPT)
        self.assertNotIn("not text", self.say(t, "Hello"))
        self.leave(t)


class Plain(AtTerminal, unittest.TestCase):
    """A terminal on which nothing can be drawn."""

    kind = "dumb"


class Chat(AtTerminal, unittest.TestCase):
    def test_interrupt_during_prompt(self):
        t = self.start("-n", "40", before=60000)
        t.type(QUESTION)
        t.expect("prompt [")
        t.interrupt()
        t.expect("the message was not read")
        t.expect(PROMPT)
        self.assertIn("KV cache of 0 tokens", self.say(t, "/kv"))
        self.leave(t)

    def test_commands(self):
        t = self.start("-n", "40", before=2000)
        self.assertIn("/regen", self.say(t, "/help"))
        self.assertIn("no command /foo", self.say(t, "/foo bar"))
        self.assertIn("needs the name of a file", self.say(t, "/save"))
        self.assertIn("there is none", self.say(t, "/regen"))
        self.assertIn("cannot be read", self.say(t, "/load /nowhere/state"))
        self.assertEqual(self.say(t, QUESTION[:-1]), NEEDLE)
        cache = self.say(t, "/kv")
        numbers = re.search(r"of (\d+) tokens: ([0-9.]+) MiB, ([0-9.]+) bits per value \(f16\); f16 takes ([0-9.]+) MiB", cache)
        self.assertGreater(int(numbers[1]), 500)
        self.assertAlmostEqual(float(numbers[2]), float(numbers[4]), delta=0.2)
        state = os.path.join(self.folder.name, "state")
        self.assertIn("saved %s tokens" % numbers[1], self.say(t, "/save %s  " % state))
        self.assertIn("forgotten", self.say(t, "/clear"))
        self.assertIn("cache of 0 tokens", self.say(t, "/kv"))
        self.leave(t)
        # Another process goes on with it, and its question alone is read.
        t = self.start("-n", "40")
        self.assertIn("a conversation of %s tokens" % numbers[1], self.say(t, "/load " + state))
        self.assertIn("there is none", self.say(t, "/regen"))
        self.assertEqual(self.say(t, QUESTION[:-1]), NEEDLE)
        self.leave(t)
        self.assertLess(int(re.search(r"prompt (\d+) tokens", t.text)[1]), 60)

    def test_another_reply(self):
        t = self.start("-n", "30", "--temp", "2", "--min-p", "0", "-s", "7")
        replies = [self.say(t, "Tell me what you like.")] + [self.say(t, "/regen") for _ in range(3)]
        self.assertEqual(len(set(replies)), 4, replies)
        tokens = int(re.search(r"of (\d+) tokens", self.say(t, "/kv"))[1])
        self.leave(t)
        # The message was read once, and each reply stands where the one before it stood.
        read, written = re.search(r"prompt (\d+) tokens.*generated (\d+) tokens", t.text).groups()
        self.assertLessEqual(tokens, int(read) + 30)
        self.assertGreater(int(written), 30)
        # With the likeliest token taken each time, another reply is the same one.
        t = self.start("-n", "30")
        self.assertEqual(self.say(t, "Who is there?"), self.say(t, "/regen"))
        self.leave(t)

    def test_full_context(self):
        t = self.start("-n", "4", "-c", "96")
        self.say(t, "Hello")
        self.assertIn("no longer fits", self.say(t, "and then " * 60))
        self.say(t, "/clear")
        self.assertNotIn("fits", self.say(t, "Hello"))
        self.leave(t)

    @unittest.skipUnless(has_editor(), "built without libedit")
    def test_editing(self):
        t = self.start("-n", "4")
        t.type("/load /nowhere/na\u00efve\x7f\x7f\x7f\x01\x0b/load /nowhere/\u20ac\U0001f600\x7fx\n")
        t.expect("/nowhere/\u20acx: ")  # in the complaint
        t.expect(PROMPT)
        t.type("\x1b[A\x7fy\n")
        t.expect("/nowhere/\u20acy: ")
        t.expect(PROMPT)
        t.type("a \\\n")
        t.expect("\r\n. ")
        t.interrupt()
        t.expect(PROMPT)
        t.resize(30)
        t.type("/load /nowhere/" + "x" * 50 + "\n")
        t.expect("x" * 50 + ": ")
        self.leave(t)

    def test_thoughts_are_dim(self):
        """The format of models that always think: the built-in model's whole reply is thoughts."""
        t = self.start("--chat-template", "qwen-3-thinking", "-n", "8")
        reply = self.say(t, "Hello")
        self.assertRegex(reply, "^\x1b\\[2m[^\x1b]+\x1b\\[0m$")
        self.leave(t)
        t = self.start("--chat-template", "chatml", "-n", "8")
        self.assertNotIn("\x1b[2m", self.say(t, "Hello"))
        self.leave(t)
        piped = subprocess.run([COMMAND, "run", "--chat", "--chat-template", "qwen-3-thinking", "--temp", "0", "-n", "8", "-p", "Hello"], capture_output=True,
                               env=dict(os.environ, OMP_WAIT_POLICY="passive", XDG_CACHE_HOME=self.folder.name), check=True)
        self.assertNotIn(b"\x1b", piped.stdout)

    def test_built_in_model_says_what_it_is_for(self):
        t = self.start()
        self.assertRegex(t.text, r"The built-in model is lab-27m: .*-m FILE")
        self.leave(t)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
