"""The package's type hints: they hold in the package, and a user's checker sees what calls return."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import support

support.need("numpy", "mypy")

USE = """
import terse
model = terse.Model()
session = model.session(kv="f16")
reveal_type(session.generate("a", temperature=0.5))
reveal_type(session.generate("a", stream=True))
reveal_type(session.chat([{"role": "user", "content": "a"}]))
reveal_type(session.logits())
reveal_type(session.cache.resident)
session.generate("a", temperature="hot")
session.generate("a", temprature=0)
reveal_type(session.chat([{"role": "user", "content": "a"}], tools=[]))
reveal_type(session.chat([{"role": "user", "content": "a"}], tools=[], stream=True))
"""


class Types(unittest.TestCase):
    def mypy(self, *arguments):
        configuration = os.path.join(support.ROOT, "bindings", "python", "pyproject.toml")
        command = [sys.executable, "-m", "mypy", "--config-file", configuration, "--cache-dir", os.devnull, *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout

    def test_the_package(self):
        self.assertIn("Success", self.mypy(os.path.join(support.ROOT, "bindings", "python", "terse")))

    def test_what_a_user_sees(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "use.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(USE)
            said = self.mypy(path)
        types = re.findall(r'Revealed type is "(.*)"', said)
        self.assertEqual(types[:3] + types[4:5], ["str", "typing.Iterator[str]", "str", "int"])
        self.assertEqual(len(types), 7)
        self.assertEqual(types[5], "terse.tools.Reply")
        self.assertIn("terse.tools.ToolCall", types[6])
        self.assertIn("float", types[3])
        self.assertEqual(set(re.findall(r"use.py:(\d+): error", said)), {"10", "11"}, said)


if __name__ == "__main__":
    support.main()
