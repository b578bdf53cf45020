#!/usr/bin/env python3
"""Makes docs/reports/real-models.md: what every method costs on real models. Needs the program terse and Python alone, but for the plot.

    real_models.py learn measure report -m MODEL.gguf [-m ...] -f TEXT [--devices cuda,cpu] [--work FOLDER]

Steps, of which one or several are named:
    learn    what methods have to learn about a model: FOLDER/codebooks/MODEL/NAME.gguf, and NAME.json with what the command said of it
    measure  a file of JSON for each model, method and part below FOLDER/results: perplexity and divergence from an f16 cache of the same
             device, over the second halves of windows of the text (terse perplexity); and for each length of questions how many of eight facts
             are found in a text of that length, which is read once, saved, and asked about through what the method has kept of it
             (terse run --state). With --devices cuda,cpu a method is measured on the GPU unless the command refuses it there
    report   the page, its plot, and the table of the README's section Methods

The first two go on where they were stopped: what is there already is not made again, whatever device or machine it comes from, so that parts of
the work can be done on several machines and folders copied into one. --minutes ends a run in time; what was under way is lost. What
failed is tried again by the next run. Results of different commits lie in different folders, and the page is of one."""

import argparse
import hashlib
import json
import os
import platform
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from real_models_methods import METHODS, arguments_of, codebook_of  # noqa: E402
from real_models_questions import FACTS, REPLY_TOKENS, is_right, planted, prompt  # noqa: E402

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LONG = 8192  # tokens: questions on longer texts are asked of LONG_MODELS alone, since other contexts end here or processors take too long
LONG_MODELS = ("qwen2.5",)
NUMBER = r"([-+0-9.e]+|nan)"


class Failed(Exception):
    """The command refused, was killed or took too long: its last line says why."""


class OutOfTime(Exception):
    """--minutes are over."""


def name_of(path):
    return os.path.basename(path).removesuffix(".gguf")


def write_json(path, value):
    """Whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def commit_of(given):
    """The project's commit, with + where tracked files differ from it."""
    if given:
        return given
    try:
        git = lambda *arguments: subprocess.run(["git", "-C", PROJECT, *arguments], check=True, capture_output=True, text=True).stdout.strip()  # noqa: E731
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        sys.exit("real_models.py: the project's folder is no git repository here: say with --commit of which commit the program was built")


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def gpu():
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], check=True, capture_output=True, text=True)
        return listed.stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "a GPU"


def plain(message):
    """Without the command's name and folders of this machine."""
    return re.sub(r"\S*/(?=[^/\s]+\.(gguf|base)\b)", "", re.sub(r"^terse \w+: ", "", message))


class Runner:
    def __init__(self, options):
        self.options = options
        self.commit = commit_of(options.commit)
        self.end = time.monotonic() + 60 * options.minutes
        self.machines = {"cpu": processor(), "cuda": gpu()}
        self.lock = threading.Lock()
        self.began = time.monotonic()

    def log(self, text):
        with self.lock:
            print(f"{time.monotonic() - self.began:6.0f} s  {text}", flush=True)

    def terse(self, command, *arguments):
        """Runs the command and returns what it printed, both streams."""
        left = min(self.options.limit, self.end - time.monotonic())
        if left <= 0:
            raise OutOfTime
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
        try:
            done = subprocess.run(
                [self.options.terse, command, "-t", str(self.options.threads), *arguments],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=left, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            if time.monotonic() >= self.end:
                raise OutOfTime from None
            raise Failed(f"took more than {self.options.limit:.0f} seconds") from None
        if done.returncode < 0:
            raise Failed(f"ended by signal {-done.returncode}")
        if done.returncode:
            lines = [line for line in re.split(r"[\r\n]+", done.stderr) if line.strip()]
            raise Failed(plain(lines[-1]) if lines else f"exit status {done.returncode}")
        return done.stdout, done.stderr

    def work_off(self, pools):
        """pools: (jobs, threads). Runs the jobs, each a function, on so many threads of their own; the first error ends all."""
        errors = []

        def work(jobs):
            try:
                while not errors:
                    jobs.get_nowait()()
            except (queue.Empty, OutOfTime):
                pass
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = []
        for jobs, n in pools:
            waiting = queue.Queue()
            for job in jobs:
                waiting.put(job)
            threads += [threading.Thread(target=work, args=(waiting,), daemon=True) for _ in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        if time.monotonic() >= self.end:
            self.log("time is over: the same command goes on from here")


# ---- Learning


class Learning(Runner):
    def path(self, model, codebook, suffix):
        return os.path.join(self.options.work, "codebooks", name_of(model), codebook + suffix)

    def learn(self, model, codebook):
        path, method = self.path(model, codebook, ".gguf"), "terse-2" if codebook == "terse" else codebook
        windows = self.options.windows if codebook != "terse" else 0  # a profile takes few of itself
        os.makedirs(os.path.dirname(path), exist_ok=True)
        start = time.monotonic()
        record = {"commit": self.commit, "machine": self.machines["cpu"]}
        try:
            said, _ = self.terse("calibrate", "-m", model, "--kv", method, "-o", path, "--chunks", str(windows))
            record["learned"] = re.search(r"^learned from .*", said, re.MULTILINE)[0]
        except Failed as error:
            record["failed"] = str(error)
        record["seconds"] = round(time.monotonic() - start, 1)
        write_json(self.path(model, codebook, ".json"), record)
        self.log(f"{name_of(model)} {codebook}: {record.get('learned') or record['failed']}")

    def run(self):
        codebooks = dict.fromkeys(filter(None, map(codebook_of, self.options.methods)))
        missing = [(m, c) for c in codebooks for m in self.options.models if not os.path.exists(self.path(m, c, ".gguf"))]
        self.log(f"{len(missing)} codebooks to learn, {self.options.cpu_jobs} at a time")
        self.work_off([([lambda m=m, c=c: self.learn(m, c) for m, c in missing], self.options.cpu_jobs)])


# ---- Measuring


PERPLEXITY = {
    "perplexity": rf"^PPL = {NUMBER}",
    "perplexity_error": rf"^PPL = \S+ \+/- {NUMBER}",
    "resident": rf"^KV cache = {NUMBER} bytes",
    "tokens": rf"resident after {NUMBER} tokens",
    "bits": rf"tokens, {NUMBER} bits per value",
}
DIVERGENCE = {
    "ratio": rf"^PPL / PPL\(base\) = {NUMBER}",
    "ratio_error": rf"^PPL / PPL\(base\) = \S+ \+/- {NUMBER}",
    "kld": rf"^KLD mean = {NUMBER}",
    "kld_error": rf"^KLD mean = \S+ \+/- {NUMBER}",
    "kld_median": rf"^KLD median = {NUMBER}",
    "kld_99.9": rf"^KLD 99.9 % = {NUMBER}",
    "same_top": rf"^same top-1 = {NUMBER}",
}
OF_ITSELF = {"ratio": 1, "ratio_error": 0, "kld": 0, "kld_error": 0, "kld_median": 0, "kld_99.9": 0, "same_top": 100}


def figures(patterns, text):
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in patterns.items()}
    missing = [name for name, match in found.items() if not match]
    if missing:
        raise Failed(f"the command printed no {missing[0]}")
    return {name: float(match[1]) for name, match in found.items()}


class Measuring(Runner):
    def __init__(self, options):
        super().__init__(options)
        with open(options.file, encoding="utf-8") as file:
            self.text = file.read()
        self.setup = {
            "text": f"{os.path.basename(options.file)} {hashlib.sha256(self.text.encode()).hexdigest()[:12]}",
            "context": options.context,
            "windows": options.chunks,
            "questions": len(FACTS),
        }
        self.bases = {}  # (model, device): a lock, and why there is none
        self.refused = {}  # (model, method): why a GPU does not run it
        os.makedirs(os.path.join(options.work, "bases"), exist_ok=True)

    def result_path(self, model, method, part, device):
        return os.path.join(self.options.work, "results", self.commit, name_of(model), f"{method.replace(':', ',')} {part} {device}.json")

    def is_done(self, model, method, part):
        found = [read_json(self.result_path(model, method, part, device)) for device in ("cuda", "cpu")]
        return any(result and not result.get("failed") for result in found)

    # ---- Codebooks

    def codebook(self, model, method):
        """(path or None, what is known of it)."""
        name = codebook_of(method)
        if not name:
            return None, None
        path = os.path.join(self.options.work, "codebooks", name_of(model), name)
        record = read_json(path + ".json") or {}
        if os.path.exists(path + ".gguf"):
            return path + ".gguf", {**record, "bytes": os.path.getsize(path + ".gguf")}
        raise Failed(record.get("failed") or f"there is no codebook {name} of the model: learn it first")

    # ---- Perplexity

    def base(self, model, device):
        """The base file of an f16 cache, made if there is none, and what it printed. Others wait for it meanwhile."""
        with self.lock:
            lock, known = self.bases.setdefault((model, device), (threading.Lock(), {}))
        path = os.path.join(self.options.work, "bases", f"{name_of(model)}.{device}.{self.options.context}x{self.options.chunks}.{self.commit}.base")
        with lock:
            if known.get("failed"):
                raise Failed(known["failed"])
            if "said" not in known:
                saved = read_json(path + ".json") if os.path.exists(path) else None
                known["said"] = saved["said"] if saved else self.make_base(model, device, path, known)
        return path, known["said"]

    def make_base(self, model, device, path, known):
        scored = ["-f", self.options.file, "-c", str(self.options.context), "--chunks", str(self.options.chunks)]
        try:
            said, _ = self.terse("perplexity", "-m", model, "--device", device, "--kv", "f16", *scored, "--kl-divergence-base", path)
        except Failed as error:
            known["failed"] = f"f16: {error}"
            raise
        write_json(path + ".json", {"said": said})
        return said

    def perplexity(self, model, device, arguments):
        base, said = self.base(model, device)
        if arguments[1] == "f16":
            return figures(PERPLEXITY, said) | OF_ITSELF
        compared = ["--kl-divergence-base", base, "--kl-divergence"]
        said, _ = self.terse("perplexity", "-m", model, "--device", device, *arguments, *compared)
        return figures(PERPLEXITY | DIVERGENCE, said)

    # ---- Questions

    def questions(self, model, device, arguments, length):
        common = ["-m", model, "--device", device, *arguments]
        with tempfile.TemporaryDirectory(dir=self.options.work) as folder:
            text, state = os.path.join(folder, "text"), os.path.join(folder, "state")
            with open(text, "w", encoding="utf-8") as file:
                file.write(planted(self.text, length))
            _, said = self.terse("run", *common, "-f", text, "-n", "0", "--save-state", state)
            read = figures({"tokens": rf"prompt {NUMBER} tokens", "bits": rf"MiB, {NUMBER} bits per value"}, said)
            asked = ["--state", state, "--temp", "0", "-n", str(REPLY_TOKENS)]
            replies = [self.terse("run", *common, *asked, "-p", prompt(beginning))[0] for beginning, _ in FACTS]
        right = sum(is_right(answer, reply) for (_, answer), reply in zip(FACTS, replies))
        return {**read, "right": right, "replies": replies}

    # ---- Tasks

    def probe(self, model, method):
        """Finds out why a GPU does not run it, if that is so."""
        try:
            path, _ = self.codebook(model, method)
            self.terse("run", "-m", model, "--device", "cuda", *arguments_of(method, path), "-p", "The", "-n", "1")
        except Failed as error:
            self.refused[model, method] = str(error)

    def measure(self, model, method, part, device):
        start = time.monotonic()
        result = {"commit": self.commit, "model": name_of(model), "method": method, "part": part, "device": device}
        result |= {"machine": self.machines[device], "setup": self.setup, "refused": self.refused.get((model, method))}
        try:
            path, result["codebook"] = self.codebook(model, method)
            arguments = arguments_of(method, path)
            if part == "perplexity":
                result |= self.perplexity(model, device, arguments)
            else:
                result |= self.questions(model, device, arguments, int(part.split("-")[1]))
        except Failed as error:
            result["failed"] = str(error)
        result["seconds"] = round(time.monotonic() - start, 1)
        write_json(self.result_path(model, method, part, device), result)
        right = f"{result.get('right')} of {len(FACTS)}" if part != "perplexity" else f"divergence {result.get('kld')}, {result.get('bits')} bits"
        self.log(f"{name_of(model)} {method} {part} {device}: {result.get('failed') or right}, {result['seconds']} s")

    def parts(self, model):
        asked = [n for n in self.options.questions if n <= LONG or any(name in name_of(model) for name in LONG_MODELS)]
        return ["perplexity", *(f"questions-{n}" for n in asked)]

    def run(self):
        # The method f16, for which all others of a model and device wait, comes first; then models alternate.
        of_method = [[(m, method) for m in self.options.models] for method in sorted(self.options.methods, key=lambda name: name != "f16")]
        tasks = [(m, method, part) for pairs in of_method for m, method in pairs for part in self.parts(m) if not self.is_done(m, method, part)]
        pairs = list(dict.fromkeys((m, method) for m, method, _ in tasks))
        self.log(f"{len(tasks)} parts to measure of commit {self.commit}, on {', '.join(self.options.devices)}")
        if "cuda" in self.options.devices:
            self.terse("run", "--device", "cuda", "--kv", "f16", "-p", "The", "-n", "1")  # with the built-in model: is there a GPU at all?
            self.work_off([([lambda p=p: self.probe(*p) for p in pairs], self.options.gpu_jobs)])
            for (model, method), why in self.refused.items():
                self.log(f"{name_of(model)} {method}: not on the GPU: {why}")
        jobs = {"cuda": [], "cpu": []}
        for model, method, part in tasks:
            on_gpu = "cuda" in self.options.devices and (model, method) not in self.refused
            device = "cuda" if on_gpu else "cpu"
            jobs[device].append(lambda task=(model, method, part, device): self.measure(*task))
        if "cpu" not in self.options.devices:
            jobs["cpu"] = []
        self.work_off([(jobs["cuda"], self.options.gpu_jobs), (jobs["cpu"], self.options.cpu_jobs)])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("steps", nargs="+", choices=("learn", "measure", "report"), metavar="STEP", help="learn, measure, report")
    parser.add_argument("--terse", default=os.path.join(PROJECT, "build", "bin", "terse"), help="the program")
    parser.add_argument("-m", "--model", dest="models", action="append", default=[], help="a GGUF file; may come several times")
    parser.add_argument("-f", "--file", help="text to score and to plant facts in: the test split of WikiText")
    parser.add_argument("--work", default=os.path.join(PROJECT, "build", "real-models"), help="folder; it has base files of some GB of each model and device, too")
    parser.add_argument("--docs", default=os.path.join(PROJECT, "docs", "reports"), help="folder of the page")
    parser.add_argument("--readme", help="the README, to put its table into")
    parser.add_argument("--commit", help="that the program was built of; without it the project's own")
    parser.add_argument("--devices", type=names, default=["cpu"], help="cuda, cpu or both")
    parser.add_argument("--methods", type=names, default=METHODS, help="instead of all")
    parser.add_argument("-c", "--context", type=int, default=8192, help="tokens of a window")
    parser.add_argument("--chunks", type=int, default=2, help="windows, the same of all methods, since methods are compared")
    parser.add_argument("--questions", type=numbers, default=[2048, 4096, 16384], help="lengths in tokens; those over 8192 for Qwen2.5 alone")
    parser.add_argument("--windows", type=int, default=0, help="of 2,048 tokens to learn codebooks from, but for profiles; 0: 128")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which the run ends")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that one command may take")
    parser.add_argument("-t", "--threads", type=int, default=4, help="of each command")
    parser.add_argument("--gpu-jobs", type=int, default=2, help="commands on the GPU at a time")
    parser.add_argument("--cpu-jobs", type=int, default=max(1, (os.cpu_count() or 4) // 4), help="commands on the processor at a time")
    options = parser.parse_args()
    measured = {"learn", "measure"} & set(options.steps)
    if measured and not options.models:
        parser.error("learn and measure need -m MODEL.gguf")
    if "measure" in options.steps and not options.file:
        parser.error("measure needs -f TEXT")
    if set(options.devices) - {"cuda", "cpu"}:
        parser.error("--devices takes cuda, cpu or cuda,cpu")
    for path in [*options.models, *([options.terse] if measured else []), *([options.file] if options.file else [])]:
        if not os.path.exists(path):
            parser.error(f"there is no {path}")
    return options


def with_matplotlib():
    """A Python that has it: Debian's own, where another comes first."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode == 0:
            return python
    sys.exit("real_models.py: the plot needs matplotlib: install Debian's python3-matplotlib")


def report(options):
    reports, results = os.path.join(PROJECT, "bench", "reports"), os.path.join(options.work, "results")
    page = os.path.join(options.docs, "real-models")
    readme = [options.readme] if options.readme else []
    for python, program, *outputs in (
        (sys.executable, "real_models_report.py", page + ".md", *readme),
        (with_matplotlib(), "plot_real_models.py", page + ".svg", page + ".png"),
    ):
        if subprocess.run([python, os.path.join(reports, program), results, *outputs]).returncode:
            sys.exit(1)


def main():
    options = parse()
    try:
        if "learn" in options.steps:
            Learning(options).run()
        if "measure" in options.steps:
            Measuring(options).run()
    except (Failed, OutOfTime, ValueError) as error:
        sys.exit(f"real_models.py: {error or 'time is over before anything began'}")
    if "report" in options.steps:
        report(options)


if __name__ == "__main__":
    main()
