"""The tasks of bench/experiments/long_tasks.py: answers follow from the text, lengths are kept, replies are judged rightly, and a run goes on where it was.
`python3 test_long_tasks.py build/bin/terse [TEST...]`."""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

COMMAND = os.path.abspath(sys.argv[1])
PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TEXT = os.path.join(PROJECT, "tests", "fixtures", "wiki_excerpt.txt")
SCRIPT = os.path.join(PROJECT, "bench", "experiments", "long_tasks.py")
LENGTHS = (2048, 3072)

sys.path.insert(0, os.path.dirname(SCRIPT))
import long_tasks  # noqa: E402
from long_tasks_maker import KINDS, RESERVED, TOP, Maker, judge  # noqa: E402


def count(text):
    """A token is a word, a mark, or six characters of a word."""
    return len(re.findall(r"\w{1,6}|[^\w\s]", text))


def maker():
    with open(TEXT, encoding="utf-8") as file:
        return Maker(file.read(), count)


def found_in(context, pattern):
    return dict(re.findall(pattern, context))


def derive(conversation, turn):
    """The answer to a turn, from the context and the question alone."""
    context, question = conversation["context"], turn["question"]
    codes = found_in(context, r"The access code for the (\w+ \w+) is (\d+)\.")
    asked = sorted((name for name in codes if re.search(rf"\b{name}\b", question)), key=question.index)
    kind = conversation["kind"]
    if kind in ("keys", "turns", "queries"):
        return {"all": [codes[name] for name in asked]}
    if kind == "json":
        return {"json": {name: codes[name] for name in asked}}
    if kind == "values":
        name = re.search(r"ticket numbers of the (\w+ \w+)", question).group(1)
        return {"all": re.findall(rf"A ticket number of the {name} is (\d+)\.", context)}
    if kind == "variables":
        copied, at, names = found_in(context, r"Variable (\w+) is copied to variable (\w+)\."), re.match(r"Variable (\w+) is", question).group(1), []
        while at in copied:
            names.append(at := copied[at])
        return {"all": names}
    if kind == "sum":
        coins = found_in(context, r"The (\w+) box holds (\d+) coins\.")
        return {"last": sum(int(n) for name, n in coins.items() if f"the {name} box" in question)}
    words = collections.Counter(re.findall(r"\w+", context.split(": ", 1)[1]))
    most = words.most_common(TOP + 1)
    assert most[TOP][1] < most[TOP - 1][1]
    return {"all": [word for word, _ in most[:TOP]]}


class Made(unittest.TestCase):
    def test_answers_follow_from_the_text(self):
        own = maker()
        for length in LENGTHS:
            for number in range(4):
                made = own.make(length, number)
                self.assertEqual([conversation["kind"] for conversation in made], list(KINDS))
                for conversation in made:
                    for turn in conversation["turns"]:
                        for what, answer in derive(conversation, turn).items():
                            order = sorted if what == "all" else lambda same: same
                            self.assertEqual(order(turn["answer"][what]), order(answer))
                        self.assertTrue(judge(turn["answer"], turn["solution"])[0], turn)
                        self.assertGreaterEqual(turn["tokens"], 1.2 * count(turn["solution"]))
                        for wrong in turn["answer"].get("none", []):
                            self.assertFalse(judge(turn["answer"], f"{turn['solution']} {wrong}")[0], turn)

    def test_lengths_are_kept(self):
        own = maker()
        for length in LENGTHS:
            for conversation in own.make(length, 1):
                before = sum(count(message["content"]) for message in conversation["before"])
                turns = sum(count(turn["question"]) + turn["tokens"] for turn in conversation["turns"])
                self.assertLessEqual(before + count(conversation["context"]), length - RESERVED)
                self.assertGreaterEqual(before + count(conversation["context"]), 0.9 * (length - RESERVED))
                self.assertLessEqual(turns, 0.8 * RESERVED)
        self.assertRaises(ValueError, own.make, 700, 0)
        self.assertRaises(ValueError, own.make, 30000, 0)

    def test_numbers_decide_alone(self):
        first, again = maker().make(LENGTHS[0], 2), maker().make(LENGTHS[0], 2)
        self.assertEqual(first, again)
        self.assertEqual(first[:1], maker().make(LENGTHS[0], 2, ["keys"]))
        self.assertNotEqual(first[0]["context"], maker().make(LENGTHS[0], 3)[0]["context"])
        self.assertEqual(len({conversation["context"] for conversation in first}), 3)


class Judged(unittest.TestCase):
    def test_replies(self):
        for right, answer, reply in ((True, {"all": ["12", "34"], "none": ["56"]}, "34 and 12."), (False, {"all": ["12", "34"], "none": ["56"]}, "123, 34"),
                                     (False, {"all": ["12"], "none": ["56"]}, "12 or 56"), (True, {"all": ["Otter"], "none": []}, "the otter"),
                                     (True, {"last": 37}, "4 + 33 = 37"), (True, {"last": 37}, "1 + 2 = 3\nAnswer: 37 coins"),
                                     (False, {"last": 37}, "Answer: 36"), (False, {"last": 37}, "none"),
                                     (True, {"all": ["a", "b", "c"], "least": 2, "none": []}, "c, x, a"),
                                     (False, {"all": ["a", "b", "c"], "least": 2, "none": []}, "c, x, y")):
            self.assertEqual(judge(answer, reply), (right, None), (answer, reply))
        answer = {"json": {"cold pond": "123", "red fox": "45"}}
        for verdict, reply in (((True, True), '{"red fox": 45, "cold pond": "123"}'), ((True, True), '```json\n{"cold pond": 123, "red fox": 45}\n```'),
                               ((False, True), '{"cold pond": 123}'), ((False, False), '{"cold pond": 123, "red fox": 4'), ((False, False), "[123, 45]")):
            self.assertEqual(judge(answer, reply), verdict, reply)

    def test_intervals_are_wilsons(self):
        for right, n, low, high in ((0, 10, 0, 0.2775), (50, 100, 0.4038, 0.5962), (95, 100, 0.8882, 0.9785), (10, 10, 0.7225, 1)):
            for value, wanted in zip(long_tasks.interval(right, n), (low, high)):
                self.assertAlmostEqual(value, wanted, 4)


class Run(unittest.TestCase):
    def ask(self, results, *more):
        return subprocess.run([sys.executable, "-B", SCRIPT, "run", COMMAND, "-f", TEXT, "-o", results, "--kv", "f16", "--lengths", "2048", "--tasks", "1",
                               "--parallel", "2", "--options", "-t 2", *more], capture_output=True, text=True, check=False,
                              env=dict(os.environ, OMP_WAIT_POLICY="passive", XDG_CACHE_HOME=os.path.dirname(results)))

    def test_a_run_goes_on_where_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results.jsonl")
            done = self.ask(results, "--kinds", "keys,turns")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(results, "rb") as file:
                data = file.read()
            lines = [json.loads(line) for line in data.splitlines()]
            self.assertEqual(sorted(line["kind"] for line in lines), ["keys", "turns"])
            self.assertEqual([turn["right"] for line in lines for turn in line["turns"]], 5 * [True])  # the built-in model knows such sentences
            self.assertIn("| the built-in model, 2,048 tokens, 1 of each | `f16` |", done.stdout)
            self.assertIn("| 4th | 100 (21 to 100) |", done.stdout)
            self.assertIn("serve --kv METHOD -c LENGTH --parallel 2 --queue 8 -t 2` (2 conversations)", done.stdout)
            with open(results, "wb") as file:
                file.write(data[:-20])
            again = self.ask(results, "--kinds", "keys,turns")
            self.assertEqual(again.returncode, 0, again.stderr)
            with open(results, encoding="utf-8") as file:
                after = [json.loads(line) for line in file]
            self.assertEqual(after[0], lines[0])
            self.assertEqual([(line["kind"], [turn["reply"] for turn in line["turns"]]) for line in after],
                             [(line["kind"], [turn["reply"] for turn in line["turns"]]) for line in lines])

    def write(self, folder, lines, page="<!-- long_tasks.py tables -->\nold\n<!-- end of tables -->\n"):
        """Writes a page of these lines; returns what the command said, and the page."""
        results, written = os.path.join(folder, "results.jsonl"), os.path.join(folder, "page.md")
        with open(results, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        with open(written, "w", encoding="utf-8") as file:
            file.write(page)
        done = subprocess.run([sys.executable, "-B", SCRIPT, "write", results, "--page", written], capture_output=True, text=True, check=False)
        with open(written, encoding="utf-8") as file:
            return done, file.read()

    def test_a_page_has_the_tables_of_one_commit(self):
        def line(number, **more):
            return {"command": f"bin/terse serve -m /models/{more['kv']}.gguf", "commit": "abc", "text": "t.raw", "model": "m", "kind": "keys", "length": 4096,
                    "number": number, "turns": [{"right": number > 0, "valid": None}], **more}

        lines = [line(0, kv="f16"), line(1, kv="f16"), line(1, kv="terse-2")]
        with tempfile.TemporaryDirectory() as folder:
            done, page = self.write(folder, lines)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Commit abc, from t.raw.", page)
            self.assertIn("| m, 4,096 tokens, 2 of each | `f16` | `terse-2` |", page)
            self.assertIn("| keys: one code of 16 | 50 (9 to 91) | 100 (21 to 100), 1 |", page)
            self.assertIn("Servers: `terse serve -m MODEL.gguf` (3 conversations)", page)
            self.assertNotIn("old", page)
            for refused, why in (([*lines, line(2, kv="f16", commit="def")], "of abc, def"), ([line(0, kv="f16", commit="abc-dirty")], "of abc-dirty"),
                                 ([*lines, lines[0]], "there twice")):
                done, page = self.write(folder, refused)
                self.assertEqual(done.returncode, 1)
                self.assertIn(why, done.stderr)
                self.assertIn("old", page)
            done, page = self.write(folder, lines, "no markers")
            self.assertEqual((done.returncode, page), (1, "no markers"))

    def test_a_server_that_does_not_start_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.ask(os.path.join(folder, "results.jsonl"), "--kinds", "keys", "--kv", "nonsense")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"long_tasks.py: nonsense, 2,048 tokens: .* did not start: terse serve: .*nonsense")


if __name__ == "__main__":
    del sys.argv[1]
    unittest.main()
