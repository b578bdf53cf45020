"""The model class of lm_eval: its scores against rows of logits, and lm_eval's own command on tasks of local files."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import support

support.need("numpy", "lm_eval")
import numpy as np
from lm_eval.api.instance import Instance

import terse.lm_eval

SMOLLM2 = os.path.join(os.environ.get("TERSE_MODELS") or os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"),
                                                                      "terse", "models"), "smollm2-135m-instruct-q4_1.gguf")

PLANTED = """task: planted_codes
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{code}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 24, do_sample: false}
filter_list:
  - {name: digits, filter: [{function: regex, regex_pattern: "([0-9]+)"}, {function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
ENDINGS = """task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{begin}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
CODE = 5550123


def request(*arguments):
    return Instance(request_type="loglikelihood", doc={}, arguments=arguments, idx=0)


def log_softmax(rows):
    rows = rows.astype(np.float64)
    return rows - np.log(np.exp(rows).sum(1, keepdims=True))


class Scores(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lm = terse.lm_eval.TerseLM(kv="f16", threads=support.THREADS)
        cls.model = cls.lm.model

    def expected(self, begin, text):
        """The log-probability of what follows the first `begin` tokens of a text, by one prefill with rows."""
        tokens = self.model.tokenize(text)
        log_p = log_softmax(self.model.session("f16").prefill_logits(tokens[:-1], first=begin - 1))
        return log_p[np.arange(len(log_p)), tokens[begin:]].sum(), bool((log_p.argmax(1) == tokens[begin:]).all())

    def test_continuations(self):
        context = support.PROSE
        endings = [" the river", " zebras of the moon", " the"]
        found = self.lm.loglikelihood([request(context, ending) for ending in endings])
        begin = len(self.model.tokenize(context))
        for ending, (score, greedy) in zip(endings, found):
            value, likeliest = self.expected(begin, context + ending)
            self.assertAlmostEqual(score, value, delta=0.05)
            self.assertEqual(greedy, likeliest)
        self.assertGreater(found[0][0], found[1][0])
        self.assertTrue(found[2][1])

    def test_blanks_of_a_context_belong_to_what_follows(self):
        one, other = self.lm.loglikelihood([request("It lies on the bank of the", " river"), request("It lies on the bank of the ", "river")])
        self.assertAlmostEqual(one[0], other[0], delta=1e-4)

    def test_a_whole_text(self):
        text = support.article()[:800]
        (found,) = self.lm.loglikelihood_rolling([request(text)])
        tokens = np.concatenate([self.lm._first()[-1:], self.model.tokenize(text, begin=False)])
        log_p = log_softmax(self.model.session("f16").prefill_logits(tokens[:-1]))
        self.assertAlmostEqual(found, log_p[np.arange(len(log_p)), tokens[1:]].sum(), delta=0.002 * abs(found))

    def test_a_long_text_by_windows(self):
        short = terse.lm_eval.TerseLM(kv="f16", threads=support.THREADS, context=40)
        text = support.article()[:600]
        (found,) = short.loglikelihood_rolling([request(text)])
        (whole,) = self.lm.loglikelihood_rolling([request(text)])
        self.assertLess(found, whole)
        self.assertGreater(found, 3 * whole)

    def test_replies(self):
        expected = self.model.session("f16").generate(support.PROSE, max_tokens=12, temperature=0)
        self.assertEqual(self.lm.generate_until([request(support.PROSE, {"until": ["\n\n"], "max_gen_toks": 12})]), [expected])
        (stopped,) = self.lm.generate_until([request(support.PROSE, {"until": [expected[8:12]], "max_gen_toks": 12})])
        self.assertEqual(stopped, expected[:8])


class Command(unittest.TestCase):
    def evaluate(self, folder, tasks, settings, *options):
        offline = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=os.path.join(folder, "cache"))
        command = [sys.executable, "-m", "terse.lm_eval", "--model", "terse", "--model_args", settings, "--tasks", tasks, "--include_path", folder,
                   "--output_path", folder, *options]
        result = subprocess.run(command, env=offline, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:])
        found = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.startswith("results")]
        with open(found[0], encoding="utf-8") as file:
            return json.load(file)["results"]

    def write_task(self, folder, name, task, rows):
        path = os.path.join(folder, name + ".jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as file:
            file.write(task % path)

    def planted(self, n):
        article = support.article()
        for i in range(n):
            at, code = 3000 * i, CODE + 1017 * i
            document = "%s\nThe access code for the merry lantern is %d.\n%s" % (article[at : at + 800], code, article[at + 800 : at + 1200])
            yield {"text": document + "\n\nWhat is the access code for the merry lantern?", "code": str(code)}

    def test_tasks_of_local_files(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write_task(folder, "planted_codes", PLANTED, self.planted(2))
            self.write_task(folder, "endings", ENDINGS, [
                {"begin": "The ship sailed across the", "choices": [" sea", " the the of"]}, {"begin": "He was born in", "choices": [" the city", " of of and"]}])
            settings = "kv=terse-4,threads=%d" % support.THREADS
            self.assertEqual(self.evaluate(folder, "endings", settings)["endings"]["acc,none"], 1.0)
        with tempfile.TemporaryDirectory() as folder:
            self.write_task(folder, "planted_codes", PLANTED, self.planted(2))
            results = self.evaluate(folder, "planted_codes", settings, "--apply_chat_template")
            self.assertEqual(results["planted_codes"]["exact_match,digits"], 1.0)

    @unittest.skipUnless(os.path.exists(SMOLLM2), "there is no SmolLM2 (scripts/get-model.sh smollm2-135m fetches it)")
    def test_smollm2(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write_task(folder, "planted_codes", PLANTED, self.planted(2))
            settings = "path=%s,kv=terse-4,threads=%d" % (SMOLLM2, support.THREADS)
            results = self.evaluate(folder, "planted_codes", settings, "--apply_chat_template")
            self.assertEqual(results["planted_codes"]["exact_match,digits"], 1.0)


if __name__ == "__main__":
    support.main()
