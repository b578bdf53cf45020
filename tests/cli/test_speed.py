"""The tables of bench/cuda/speed.py, from lines as the programs print them: `python3 test_speed.py build/bin/terse [TEST...]`. No GPU is needed."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SCRIPT = os.path.join(PROJECT, "bench", "cuda", "speed.py")
sys.path.insert(0, os.path.dirname(SCRIPT))

import speed  # noqa: E402

PRINTED = {
    "attention": "f16 1x1024 11.20 0.10 (4 parts)\nf16 1x8192 19.80 1.60 (4 parts)\nq8_0 1x1024 14.60 0.1 (4 parts)\nmillion-4 1x32768 50.00 0.7 (2 parts)\nterse-4 1x1024 14.60 0.1 (4 parts)\nterse-4 1x8192 19.10 0.1 (4 parts)\n",
    "pytorch": "H100, PyTorch 2.11\nPyTorch 1x1024: 7.30 us (cudnn grouped)\nPyTorch 1x8192: 19.10 us (cudnn grouped)\nPyTorch 1x32768: 51.00 us (cudnn folded)\n",
    "heads": "f16 1x32768/32 180.00 3.0 (4 parts)\nmillion-4 1x32768/32 80.00 1.6 (4 parts)\nmillion-3 1x32768/32 90.00 1.6 (4 parts)\nPyTorch 1x32768/32: 160.00 us (cudnn grouped)\n",
    "choice": "f16@7.5 1x32768 81.50 1.6 (4 parts)\nf16@7.5/choice 1x32768 25.10 5.3 (4 parts)\n",
    "encode": "f16 encode 29.0 2300\nf16 decode 28.6 2300\ncommvq-2 encode 11020.4 3\ncommvq-2 decode 1299.0 30\n",
    "weights": "GB/s of weights        vectors       1       2       8      16      32      64\nF16     28672 x 4096               4208    4100    3982    2871    2000    1000\n",
    "anchors": "anchors 128 8192 attention 1111.0 scores 1752.0 (1.58) choice 31.0\nanchors 64 8192 attention 746.0 scores 1346.0 (1.80) choice 31.0\n"
    "mat-256 64 step 9.8 when no row moves, 35.1 when all do\n",
    "commvq": "commvq-2 8192 registers 60.0 tables 1800.0 naive 1620.0\n",
    "million-tables": "million-4 1x8192/8 shipped 20.0 scores 12.0 sums 18.0\nmillion-4 8x32768/32 shipped 600.0 scores 200.5 sums 250.0\n"
    "million-4 1x8192/32/64 shipped 16.0 scores 6.0 sums 6.0\n",
    "prefill": "H100, PyTorch 2.11, cuDNN 91900; us (TFLOP/s)\nhead_dim  queries   behind                terse                cuDNN                flash  best/terse\n"
    "     128     4096        0         294.1 ( 468.0)        290.4 ( 474.0)        507.2 ( 271.0)        0.99\n"
    "      96      100    32768         100.0 ( 400.0)                    -        507.2 (  99.6)        5.07\n"
    "     256      100    32768         100.0 ( 400.0)                    -                    - \n",
    "sealing": "million-4, encoded ahead: mean 1.304 ms, median 1.300, longest 1.480 (step 3 of 64), before it 1.400 1.390 1.380\n"
    "million-4, encoded within the step: mean 1.286 ms, median 1.280, longest 1.451 (step 0 of 64), before it 1.400 1.390 1.380\n",
    "divergence": "4 x 2048 tokens of wiki.valid.raw, the built-in model\nmethod           processor         GPU  GPU / processor  standard error\n"
    "f16               0.000000    0.000000                -        0.000000\nterse-4           0.000083    0.000083           0.9991        0.000002\nterse-4:none      0.000090    0.000091           1.0110        0.000002\n",
    "steps": json.dumps([{"model": "8B", "test": "tg64 x 8 @ d8192", "kv": kv, "tokens_per_second": rate} for kv, rate in (("f16", 800), ("terse-4", 600))], indent=1)
    + json.dumps([{"model": "8B", "test": "tg64 @ d8192", "kv": "f16", "tokens_per_second": 100}]),
    "small-steps": json.dumps([{"model": "0.5B", "test": "tg64 @ d4096", "kv": "f16", "tokens_per_second": 700}]),
    "papers": json.dumps([{"model": "7B", "test": "tg32 x 4 @ d1024", "kv": kv, "kv_mib": 2048, "tokens_per_second": rate} for kv, rate in (("f16", 200), ("million-4", 400))])
    + json.dumps([{"model": "8B", "test": "pp131072", "kv": "antkv-1", "kv_mib": 512, "tokens_per_second": 12345.6}]),
    "second-token": json.dumps([{"model": "8B", "test": "pp8192", "kv": "selfindex-2", "kv_mib": 256, "tokens_per_second": 23000}]),
    "batches": json.dumps([{"model": "8B", "test": "tg32 x 32 @ d32768", "kv": "antkv-1", "kv_mib": 1024, "tokens_per_second": 3200}]),
    "largest": json.dumps([{"model": "8B", "test": "tg4 x 500 @ d1024", "kv": "f16", "kv_mib": 72000, "tokens_per_second": 5000}]),
    "whole": json.dumps([{"model": "8B", "test": "tg4 x 3000 @ d1024", "kv": "antkv-1", "kv_mib": 131072, "tokens_per_second": 3000}]),
}
ROWS = {
    "attention": ["| PyTorch f16 | 7.3 | 19.1 | 51.0 |", "| f16 | 11.2 (0.65) | 19.8 (0.96) |", "| terse-4 | 14.6 (0.50) | 19.1 (1.00) |  |  |  |  |  | 62 to 77 % |"],
    "attention-scalar": ["| q8_0 | 14.6 (0.50) |"],
    "choice": ["| PyTorch f16, all tokens | 51.0 |", "| f16 | 81.5 / 25.1 |"],
    "goals": ["| million-4 |  | 50.0, 1.02 (1.7) |  |  |  | 60 to 60 % |"],
    "ratios": ["| f16 | 0.96 |", "| million-4 |  | 1.02 |"],
    "million": ["| PyTorch f16 | 160.0 | 1.00 |", "| f16 | 180.0 | 0.89 |", "| million-4 | 80.0 | 2.00 |", "| million-3 | 90.0 | 1.78 |"],
    "prefill": ["| 128 | 4096 | 0 | 294 (468) | 290 (474) | 507 (271) | 0.99 |", "| 96 | 100 | 32768 | 100 (400) |  | 507 (100) | 5.07 |", "| 256 | 100 | 32768 | 100 (400) |  |  |  |"],
    "sealing": ["| million-4, beside steps | 1.304 | 1.300 | 1.480 |", "| million-4, within the step | 1.286 | 1.280 | 1.451 |"],
    "divergence": ["|  | terse-4 | terse-4, no profile |", "| processor | 0.000083 | 0.000090 |", "| GPU's, times that | 0.999 | 1.011 |"],
    "encode": ["|  | f16 | commvq-2 |", "| encode | 29 | 11,020 |", "| decode | 29 | 1,299 |"],
    "weights": ["| vectors | F16 |", "| 1 | 4208 |", "| 8 | 3982 |", "| 16 | 2871 |", "| 32 | 2000 |", "| 64 | 1000 |"],
    "anchors": ["| 64 | 8,192 | 746 | 1,346 | 1.80 | 31 |", "| 128 | 8,192 | 1,111 | 1,752 | 1.58 | 31 |"],
    "million-tables": ["| 1 x 8,192, 8 KV heads | 20.0 | 12.0 | 18.0 | 1.50 |", "| 8 x 32,768, 32 KV heads | 600.0 | 200.5 | 250.0 | 0.75 |", "| 1 x 8,192, 32 KV heads of 64 | 16.0 | 6.0 | 6.0 | 0.75 |"],
    "commvq": ["| commvq-2, 8,192 tokens | 60.0 | 1,800 | 1,620 | 30.0 | 27.0 |"],
    "steps": ["| 8B | 8 x 8,192 | 800 |  | 600 (0.75) |  |", "| 8B | 1 x 8,192 | 100 |  |  |  |"],
    "small-steps": ["| 0.5B | 1 x 4,096 | 700 |  |  |  |"],
    "papers": [
        "| 7B | 4 x 1,024 | f16 | 2.00 | 200.0 | 20.00 |  |",
        "| 7B | 4 x 1,024 | million-4 | 2.00 | 400.0 | 10.00 | 2.00 |",
        "| 8B | prompt of 131,072 | antkv-1 | 0.50 | 12,345.6 |  |  |",
    ],
    "second-token": ["| 8B | prompt of 8,192 | selfindex-2 | 0.25 | 23,000.0 |  |  |"],
    "batches": ["| 8B | 32 x 32,768 | antkv-1 | 1.00 | 3,200.0 | 10.00 |  |"],
    "largest": ["| 8B | 500 x 1,024 | f16 | 70.31 | 5,000.0 | 100.00 |  |"],
    "whole": ["| 8B | 3,000 x 1,024 | antkv-1 | 128.00 | 3,000.0 | 1000.00 |  |"],
}


def lines(commit="abc1234", gpu="NVIDIA H100", parts=PRINTED):
    """A line for each command of the parts, of which the first has printed all."""
    own = []
    for part in parts:
        for i, words in enumerate(speed.PARTS[part] or [["terse", "bench"]]):
            own.append({"part": part, "command": " ".join(words), "commit": commit, "gpu": gpu, "driver": "1.2", "date": "2026-11-27", "printed": "" if i else PRINTED[part]})
    return own


class Speed(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for page, *_ in speed.TABLES.values():
            path = os.path.join(self.folder.name, page)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.path.join(PROJECT, "docs", page), encoding="utf-8") as file, open(path, "w", encoding="utf-8") as copy:
                copy.write(file.read())

    def write(self, kept):
        path = os.path.join(self.folder.name, "lines.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
        return subprocess.run([sys.executable, "-B", SCRIPT, "write", path, "--docs", self.folder.name], capture_output=True, text=True, check=False)

    def table(self, name):
        with open(os.path.join(self.folder.name, speed.TABLES[name][0]), encoding="utf-8") as file:
            return re.search(rf"<!-- speed.py {name} -->\n(.*)\n<!-- end of {name} -->", file.read(), re.DOTALL)[1]

    def test_tables_are_written_between_their_markers(self):
        for _ in range(2):  # a second time over its own
            done = self.write(lines())
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for name, rows in ROWS.items():
                self.assertTrue(self.table(name).startswith("Commit abc1234, NVIDIA H100, driver 1.2, 2026-11-27; `bench/cuda/speed.py run "), name)
                for row in rows:
                    self.assertIn(row, self.table(name))

    def test_every_table_is_tried(self):
        self.assertEqual(set(ROWS), set(speed.TABLES))

    def test_what_was_not_measured_stays(self):
        before = self.table("commvq")
        self.assertEqual(self.write(lines(parts=["encode"])).returncode, 0)
        self.assertEqual(self.table("commvq"), before)
        self.assertIn("11,020", self.table("encode"))

    def test_a_part_of_which_commands_are_missing_changes_nothing(self):
        before = self.table("encode")
        done = self.write(lines(parts=["encode"])[:-1])
        self.assertEqual(done.returncode, 0)
        self.assertIn("encode: left as it is, not measured: bench_encode_cuda", done.stdout)
        self.assertEqual(self.table("encode"), before)

    def test_commits_and_gpus_are_not_mixed(self):
        for other in ({"commit": "def5678"}, {"gpu": "NVIDIA H200"}):
            before = self.table("encode"), self.table("attention")
            done = self.write(lines(parts=["encode", "attention"]) + lines(parts=["pytorch"], **other))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^speed.py: the table attention would mix .* and ")
            self.assertEqual((self.table("encode"), self.table("attention")), before)

    def test_tables_may_be_of_different_commits(self):
        self.assertEqual(self.write(lines(parts=["encode"]) + lines(commit="def5678", parts=["commvq"])).returncode, 0)
        self.assertIn("abc1234", self.table("encode"))
        self.assertIn("def5678", self.table("commvq"))

    def program(self, name, text):
        path = os.path.join(self.folder.name, "bin", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)

    def run_parts(self, *parts):
        path = os.path.join(self.folder.name, "run.jsonl")
        environment = {**os.environ, "PATH": os.path.join(self.folder.name, "bin") + ":" + os.environ["PATH"]}
        words = [sys.executable, "-B", SCRIPT, "run", *parts, "--build", self.folder.name, "--lines", path]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        return done, speed.read([path]) if os.path.exists(path) else []

    def test_a_run_goes_on_and_keeps_to_its_commit(self):
        self.program("nvidia-smi", "echo NVIDIA H100, 1.2\n")
        self.program("terse", "echo commit abc1234\n")
        self.program("bench_encode_cuda", '[ "$1" = commvq-2 ] && { echo no memory >&2; exit 1; }\necho "$1 encode 29.0 2300"\n')
        done, kept = self.run_parts("encode")
        self.assertEqual((done.returncode, done.stderr), (1, "speed.py: bench_encode_cuda commvq-2 exited with 1: no memory\n"))
        self.assertEqual(len(kept), len(speed.ENCODED) - 1)
        self.assertEqual({(line["commit"], line["gpu"], line["driver"]) for line in kept}, {("abc1234", "NVIDIA H100", "1.2")})
        self.program("bench_encode_cuda", 'echo "$1 encode 30.0 2300"\n')
        done, kept = self.run_parts("encode")
        self.assertEqual(done.returncode, 0)
        self.assertEqual([line["command"] for line in kept if "30.0" in line["printed"]], ["bench_encode_cuda commvq-2"])
        self.program("terse", "echo commit def5678\n")
        done, again = self.run_parts("encode")
        self.assertEqual((done.returncode, again), (1, kept))
        self.assertIn("would mix", done.stderr)

    def test_a_part_that_is_not_known_is_refused(self):
        done = subprocess.run([sys.executable, "-B", SCRIPT, "run", "nonsense"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no part nonsense", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
