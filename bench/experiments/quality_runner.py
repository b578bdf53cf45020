"""Runs the measurements of quality_measurements.py: many commands side by side, each only once what it needs is there."""

import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
import threading
import time

from quality_measurements import Measurement, commit_in, is_clean, learned
from quality_texts import LEARNED, PROSE
from planted_facts import FACTS, REPLY_TOKENS, is_right, planted
from state_anchors import anchors_of

NUMBER = r"([-+0-9.e]+|nan)"
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
FREE_RUNNING = {  # each with its standard error over windows, which one window has not
    "free": "free-running KLD",
    "given": "KLD on f16's text",
    "written": r"PPL\(written\)",
    "f16s": r"PPL\(f16's text\)",
    "over": r"PPL\(written\) / PPL\(f16's text\)",
    "expected": r"PPL\(written\) / expected",
    "same": "same greedy tokens",
    "prefix": "same greedy prefix",
}
OF_ITSELF = {"ratio": 1, "ratio_error": 0, "kld": 0, "kld_error": 0, "kld_median": 0, "kld_99.9": 0, "same_top": 100}
ON_PROCESSOR = ("endless", "recall", "key_tables", "value_codes", "attention_times")  # programs that know no other device
BLOCK = 256  # neighbouring positions whose means are kept, for comparisons in pairs
NOT_ON_GPU = re.compile(r"on the GPU|--device cpu|GPU does not")


class Failed(Exception):
    """The command refused, was killed or took too long: its last line says why."""


class OutOfTime(Exception):
    """--minutes are over."""


def name_of(path):
    return os.path.basename(path).removesuffix(".gguf")


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def gpus():
    """(name, number of them) of this machine's GPUs."""
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], check=True, capture_output=True, text=True)
        names = listed.stdout.strip().split("\n")
        return names[0].strip(), len(names)
    except (OSError, subprocess.CalledProcessError):
        return "a GPU", 1


def plain(message):
    """Without the command's name and folders of this machine."""
    return re.sub(r"\S*/(?=[^/\s]+\.(gguf|base)\b)", "", re.sub(r"^\w+( \w+)?: ", "", message))


def figures(patterns, text):
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in patterns.items()}
    missing = [name for name, match in found.items() if not match]
    if missing:
        raise Failed(f"the command printed no {missing[0]}")
    return {name: float(match[1]) for name, match in found.items()}


def blocks(text):
    """{"nll": [...], "kld": [...]} of the lines of --block."""
    found = re.findall(rf"^block of \d+: NLL = {NUMBER}(?:, KLD = {NUMBER})?$", text, re.MULTILINE)
    columns = {"nll": [float(nll) for nll, _ in found], "kld": [float(kld) for _, kld in found if kld]}
    return {"blocks": {name: values for name, values in columns.items() if values}}


class Job:
    """A command to run: a codebook, a base file or a measurement."""

    def __init__(self, work, device, needs=()):
        self.work, self.device, self.needs = work, device, needs  # needs: a function of the job, the jobs that come before it
        self.state, self.failed = "waiting", None


class Runner:
    def __init__(self, options, store):
        self.options, self.store = options, store
        self.end = time.monotonic() + 60 * options.minutes
        gpu, self.gpus = gpus() if "cuda" in options.devices else (None, 0)
        self.machines = {"cpu": processor(), "cuda": gpu}
        self.lock = threading.Condition()
        self.worker = threading.local()  # of each worker: the number of its GPU
        self.began = time.monotonic()
        self.models = {name_of(path): path for path in options.models}
        self.hashes = {name: self.hash_of(path) for name, path in options.texts.items()}
        self.books, self.bases = {}, {}
        self.first = "cuda" if "cuda" in options.devices else "cpu"  # where all is tried
        self.check_library(options.terse)
        self.commit = self.commit_of(options.terse)
        os.makedirs(options.scratch, exist_ok=True)

    @staticmethod
    def commit_of(terse):
        commit = commit_in(terse)
        if not is_clean(commit):
            raise Failed(f"{terse} was built of {commit}: build it of a commit, with nothing changed")
        return commit

    @staticmethod
    def check_library(terse):
        """Refuses another build's libterse.so, which LD_LIBRARY_PATH may bring: the figures would not be those of the commit that is noted."""
        loads = subprocess.run(["ldd", terse], capture_output=True, text=True, check=False).stdout
        found = re.search(r"libterse\.so\S* => (/\S+)", loads)
        own = os.path.realpath(os.path.join(os.path.dirname(terse), ".."))
        if found and not os.path.realpath(found[1]).startswith(own + os.sep):
            raise Failed(f"{terse} would load {found[1]}, which is not of its build in {own}: mend LD_LIBRARY_PATH")

    @staticmethod
    def hash_of(path):
        with open(path, "rb") as file:
            return f"{os.path.basename(path)} {hashlib.sha256(file.read()).hexdigest()[:12]}"

    def log(self, text):
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", flush=True)

    # ---- Commands

    def command(self, *words, questions=None):
        """Runs it, with these at standard input, and returns what it printed, both streams."""
        left = min(self.options.limit, self.end - time.monotonic())
        if left <= 0:
            raise OutOfTime
        environment = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(self.options.threads), **os.environ, **getattr(self.worker, "environment", {})}
        try:
            done = subprocess.run(words, input=questions or "", capture_output=True, text=True, errors="replace", timeout=left, env=environment)
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

    def terse(self, command, model, *arguments):
        return self.command(self.options.terse, command, "-t", str(self.options.threads), "-m", self.models[model], *arguments)

    def text(self, name):
        if name not in self.options.texts:
            raise Failed(f"there is no text {name} on this machine")
        return self.options.texts[name]

    # ---- Codebooks

    def book_path(self, model, book):
        return os.path.join(self.options.work, "codebooks", self.commit, model, book.name() + ".gguf")

    def learn(self, model, device, book):
        path = self.book_path(model, book)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        text = ["-f", self.text(book.text)] if book.text else []
        said, _ = self.terse("calibrate", model, "--device", device, "--kv", book.method, "-o", path, "--chunks", str(book.windows), *book.options, *text)
        weights = re.search(r"weights: (.*), effective samples: (\d+)", said)
        return {
            "learned": re.search(r"^learned from (\d+) tokens of (.*?)(?:, and measured,)? in ", said, re.MULTILINE).groups(),
            "weights": weights.groups(),
            "bytes": os.path.getsize(path),
        }

    def book_job(self, model, book):
        what = learned(model, book)
        if what.identity() not in self.books:
            job = Job(lambda job: self.measure(job, what), self.first)
            if os.path.exists(self.book_path(model, book)):
                job.state = "done"
            self.books[what.identity()] = job
        return self.books[what.identity()]

    # ---- Perplexity

    def base_path(self, m, device):
        return os.path.join(self.options.scratch, f"{m.model}.{m.text}.{device}.{m.size[0]}x{m.size[1]}.{self.commit}.base")

    def make_base(self, job, m, device):
        path = self.base_path(m, device)
        scored = ["-f", self.text(m.text), "-c", str(m.size[0]), "--chunks", str(m.size[1])]
        said, _ = self.terse("perplexity", m.model, "--device", device, "--kv", "f16", *scored, "--kl-divergence-base", path)
        job.said = figures(PERPLEXITY, said)

    def base_job(self, m, device):
        """The base file of an f16 cache, which every run makes anew: it is large, and soon made."""
        key = (m.model, m.text, m.size, device)
        if key not in self.bases:
            self.bases[key] = Job(lambda job: self.make_base(job, m, device), device)
        return self.bases[key]

    def perplexity(self, m, device, book):
        if m.arguments == ("--kv", "f16"):
            return self.base_job(m, device).said | OF_ITSELF
        compared = ["--kl-divergence-base", self.base_path(m, device), "--kl-divergence", "--block", str(BLOCK)]
        said, _ = self.terse("perplexity", m.model, "--device", device, *m.arguments, *book, *compared)
        return figures(PERPLEXITY | DIVERGENCE, said) | blocks(said)

    def free_running(self, m, device, book):
        context, windows, tokens = map(str, m.size)
        scored = ["-f", self.text(m.text), "-c", context, "--chunks", windows, "--free-running", tokens]
        said, _ = self.terse("perplexity", m.model, "--device", device, *m.arguments, *book, *scored)
        values = {name: rf"^{pattern} = {NUMBER}" for name, pattern in FREE_RUNNING.items()}
        errors = {name + "_error": rf"^{pattern} = \S+ \+/- {NUMBER}" for name, pattern in FREE_RUNNING.items()}
        found = figures(values | {"resident": PERPLEXITY["resident"], "bits": PERPLEXITY["bits"]}, said)
        return found | (figures(errors, said) if int(windows) > 1 else dict.fromkeys(errors, 0))

    # ---- Programs beside the command

    def program(self, name, *arguments, **given):
        """Runs one, which has to be of the command's commit, and returns what it printed behind the line that says so."""
        path = os.path.join(os.path.dirname(self.options.terse), name)
        if not os.path.exists(path):
            raise Failed(f"there is no {name} beside the command: build it")
        said, _ = self.command(path, *arguments, **given)
        first, _, rest = said.partition("\n")
        if first != f"commit {self.commit}":
            raise Failed(f"{name} is of {first or 'no commit'}, terse of {self.commit}: build both")
        return rest

    def endless(self, m, device, book):
        window, windows, step = map(str, m.size)
        sizes = ["--window", window, "--windows", windows, "--step", step, "--block", str(BLOCK)]
        said = self.program("endless", "-m", self.models[m.model], "-f", self.text(m.text), "-t", str(self.options.threads), *m.arguments, *sizes)
        found = {
            "perplexity": rf"^    all: PPL {NUMBER}",
            "perplexity_error": rf"^    all: PPL \S+ \+/- {NUMBER}",
            "resident": rf"^    cache: {NUMBER} bytes",
            "bits": rf"^    cache: \S+ bytes, {NUMBER} bits",
        }
        parts = re.findall(rf"^    +(\d+) +{NUMBER} +{NUMBER} +{NUMBER}$", said, re.MULTILINE)  # tokens, perplexity, MiB of cache and of process
        return figures(found, said) | blocks(said) | ({"parts": [[float(x) for x in part] for part in parts]} if parts else {})

    def recall(self, m, device, book):
        tokens, prompts = map(str, m.size)
        said = self.program(
            *("recall", "-m", self.models[m.model], "-f", self.text(m.text), "-t", str(self.options.threads), "-c", tokens, "--chunks", prompts)
        )
        lines = re.findall(rf"^(.+): recall {NUMBER}, weight {NUMBER}(?:, error {NUMBER})?$", said, re.MULTILINE)
        return figures({"queries": rf"^{NUMBER} queries"}, said) | {"indexes": {name: [float(x) for x in numbers if x] for name, *numbers in lines}}

    # ---- CommVQ's tables of keys and codes of values

    def key_tables(self, m, device, book):
        windows, heads = map(str, m.size)
        said = self.program(
            *("commvq_tables", "-m", self.models[m.model], "-f", self.text(PROSE + LEARNED), "--test", self.text(m.text)),
            *("--chunks", windows, "--heads", heads),
        )
        return json.loads(said)

    def value_codes(self, m, device, book):
        windows, heads, steps = map(str, m.size)
        said = self.program(
            *("value_codes", "-m", self.models[m.model], "-f", self.text(m.text), "--chunks", windows, "--heads", heads, "--steps", steps)
        )
        rows = re.findall(rf"^ *(\S.*?) +{' +'.join([NUMBER] * 8)}$", said, re.MULTILINE)
        return {"encodings": [[name, *map(float, numbers)] for name, *numbers in rows]}

    def attention_times(self, m, device, book):
        said = self.program("bench_commvq", str(self.options.threads), *map(str, m.size))
        rows = re.findall(rf"^(\S+): +(\d+) x (\d+) x (\d+) +(commvq-\d) +(\d+) +{' +'.join([NUMBER] * 9)}$", said, re.MULTILINE)
        kernels = re.search(r", (\S+) kernels$", said, re.MULTILINE)[1]
        return {"kernels": kernels, "rows": [[*row[:5], *map(float, row[5:])] for row in rows]}

    # ---- Questions and places

    def questions(self, m, device, book):
        with open(self.text(m.text), encoding="utf-8") as file:
            whole = file.read()
        with tempfile.TemporaryDirectory(dir=self.options.scratch) as folder:
            text, state = os.path.join(folder, "text"), os.path.join(folder, "state")
            with open(text, "w", encoding="utf-8") as file:
                file.write(planted(whole, m.size[0]))
            said = self.program(
                *("questions", "-m", self.models[m.model], "-f", text, "--state", state, "--device", device, "-t", str(self.options.threads)),
                *("-n", str(REPLY_TOKENS), *m.arguments, *book),
                questions="".join(beginning + "\n" for beginning, _ in FACTS),
            )
        found = json.loads(said)
        right = sum(is_right(answer, reply) for (_, answer), reply in zip(FACTS, found["replies"], strict=True))
        return found | {"right": right}

    def places(self, m, device, book):
        """Where the anchors of a prompt lie, of each layer, KV head and side."""
        with tempfile.TemporaryDirectory(dir=self.options.scratch) as folder:
            text, state = os.path.join(folder, "text"), os.path.join(folder, "state")
            with open(self.text(m.text), encoding="utf-8") as file, open(text, "w", encoding="utf-8") as part:
                part.write(file.read(m.size[0] * 4))
            _, said = self.terse("run", m.model, "--device", device, *m.arguments, *book, "-f", text, "-n", "0", "--save-state", state)
            read = figures({"tokens": rf"prompt {NUMBER} tokens"}, said)
            shape, _ = self.command(self.options.terse, "inspect", self.models[m.model])
            heads = int(re.search(r"and (\d+) KV heads? of", shape)[1])
            try:
                return read | {"kv_heads": heads, "anchors": anchors_of(state)}
            except ValueError as error:
                raise Failed(str(error)) from None

    # ---- Jobs

    def measure(self, job, m):
        line = {"commit": self.commit, "identity": m.identity(), "model": m.model, "kind": m.kind, "arguments": m.arguments, "device": job.device}
        line |= {"machine": self.machines[job.device], "threads": self.options.threads, "refused": getattr(job, "refused", None)}
        line["texts"] = {name: self.hashes.get(name) for name in (m.text, m.book and m.book.text) if name}
        start = time.monotonic()
        try:
            unmet = next((n.failed for n in job.needs(job) if n.failed), None) if job.needs else None
            if unmet:
                raise Failed(unmet)
            book = ["--codebook", self.book_path(m.model, m.book)] if m.book else []
            line |= self.learn(m.model, job.device, m.book) if m.kind == "learned" else getattr(self, m.kind)(m, job.device, book)
        except Failed as error:
            if job.device == "cuda" and "cpu" in self.options.devices and NOT_ON_GPU.search(str(error)):
                job.refused, job.device, job.state = str(error), "cpu", "waiting"
                self.log(f"{m.name()}: not on the GPU: {error}")
                return
            job.failed = line["failed"] = str(error)
        line["seconds"] = round(time.monotonic() - start, 1)
        with self.lock:
            self.store.add(line)
        told = line.get("failed") or f"KLD {line['kld']}" if "kld" in line or "failed" in line else line.get("right", line.get("perplexity", "done"))
        self.log(f"{m.name()}, {job.device}: {told}, {line['seconds']} s")

    def needs_of(self, m):
        def needs(job):
            before = [self.book_job(m.model, m.book)] if m.book else []
            return before + ([self.base_job(m, job.device)] if m.kind == "perplexity" else [])

        return needs

    def next_of(self, job, device):
        """What a worker of a device can do now for a job: itself, or what it waits for; None where that is under way or another device's."""
        if job.state != "waiting":
            return None
        waiting = [n for n in (job.needs(job) if job.needs else []) if n.state != "done"]
        for other in waiting:
            found = self.next_of(other, device)
            if found:
                return found
        return job if not waiting and job.device == device else None

    def work(self, device, gpu, jobs, errors):
        self.worker.environment = {"CUDA_VISIBLE_DEVICES": str(gpu)} if device == "cuda" else {}
        while True:
            with self.lock:
                while True:
                    if errors or all(job.state == "done" for job in jobs):
                        return
                    job = next(filter(None, (self.next_of(job, device) for job in jobs)), None)
                    if job:
                        break
                    self.lock.wait(1)
                job.state = "running"
            try:
                job.work(job)
            except Failed as error:  # of a base: those that wait for it say so
                job.failed = f"f16: {error}"
            except OutOfTime as error:
                errors.append(error)
            except Exception as error:  # noqa: BLE001
                errors.append(error)
            with self.lock:
                if job.state == "running":
                    job.state = "done"
                self.lock.notify_all()

    def run(self, measurements):
        done = {identity for identity, line in self.store.best(self.commit).items() if not line.get("failed") and self.same_texts(line)}
        missing = [m for m in dict.fromkeys(measurements) if m.identity() not in done]
        jobs = []
        for m in missing:
            if m.kind == "learned":
                self.book_job(m.model, m.book).state = "waiting"
                jobs.append(self.book_job(m.model, m.book))
            else:
                jobs.append(Job(lambda job, m=m: self.measure(job, m), "cpu" if m.kind in ON_PROCESSOR else self.first, self.needs_of(m)))
        self.log(f"{len(missing)} of {len(set(measurements))} to measure of commit {self.commit}")
        if self.first == "cuda":
            self.terse("run", next(iter(self.models)), "--device", "cuda", "--kv", "f16", "-p", "The", "-n", "1")  # is there a GPU at all?
        errors = []
        workers = [("cpu", None)] * self.options.jobs + [("cuda", gpu) for gpu in range(self.gpus)] * self.options.gpu_jobs
        threads = [threading.Thread(target=self.work, args=(device, gpu, jobs, errors), daemon=True) for device, gpu in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrong = [error for error in errors if not isinstance(error, OutOfTime)]
        if wrong:
            raise wrong[0]
        if errors:
            self.log("time is over: the same command goes on from here")

    def same_texts(self, line):
        return all(self.hashes.get(name) == text for name, text in line.get("texts", {}).items())
