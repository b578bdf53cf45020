"""terse inspect --fits: what it foretells is what terse run then takes. `python3 test_fits.py build/bin/terse [TEST...]`."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

COMMAND = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
METHODS = ("f16", "q8_0", "kivi-2", "terse-4")
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def run(*arguments, text=None):
    """The output, what was said, and the peak of resident memory in MiB, for which a shell of its own waits."""
    folder = tempfile.gettempdir()
    environment = dict(os.environ, OMP_WAIT_POLICY="passive", XDG_CACHE_HOME=os.path.join(folder, "terse-no-cache"))
    asks = "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); " \
           "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(done.returncode)"
    done = subprocess.run([sys.executable, "-c", asks, COMMAND, *arguments], input=text, capture_output=True, env=environment, check=False)
    *said, kib = done.stderr.decode().rstrip("\n").split("\n")
    return done.returncode, done.stdout.decode(), "\n".join(said), int(kib) / 1024


def rows(*arguments):
    status, out, said, _ = run("inspect", "-o", "json", *arguments)
    assert status == 0, said
    return {row["kv"]: row for row in json.loads(out)}


def is_built_for_measuring():
    """Sanitizers, and a system that makes all memory huge pages, take memory of their own."""
    with open(HUGE_PAGES, encoding="ascii") if os.path.exists(HUGE_PAGES) else open(os.devnull, encoding="ascii") as file:
        return "[always]" not in file.read() and run("--version")[3] < 40


class Fits(unittest.TestCase):
    def test_what_is_foretold_is_taken(self):
        """The cache as the command tells it, and resident memory, after prompts before and behind what a method fits itself to."""
        with open(os.path.join(HERE, "..", "fixtures", "wiki_excerpt.txt"), "rb") as file:
            text = file.read()
        measurable = is_built_for_measuring()
        for kv in METHODS:
            for size in (2000, 8000):
                with self.subTest(kv=kv, size=size):
                    status, _, said, resident = run("run", "-t", "2", "-n", "1", "--kv", kv, text=text[:size])
                    self.assertEqual(status, 0, said)
                    tokens, cache = re.search(r"prompt (\d+) tokens.* KV cache ([0-9.]+) MiB", said).groups()
                    row = rows("--fits", "8G", "-c", tokens)[kv]
                    self.assertAlmostEqual(row["total_mib"], row["weights_mib"] + row["cache_mib"] + row["working_mib"], 6)
                    # A session that writes may hold a page more of what waits in the window, and one ahead (terse.h, terse_cache_bytes).
                    later = rows("--fits", "8G", "-c", str(int(tokens) + 128))[kv]
                    self.assertLess(0.98 * row["cache_mib"], float(cache), said)
                    self.assertLess(float(cache), 1.02 * later["cache_mib"], said)
                    if measurable:
                        self.assertLess(abs(row["total_mib"] / resident - 1), 0.04, (kv, tokens, row, resident))

    def test_what_fits(self):
        model = os.path.join(HERE, "..", "..", "models", "lab-27m-q8_0.gguf")
        known = rows(model, "--fits", "128M", "-c", "6000")
        self.assertEqual((known["f16"]["fits"], known["kivi-2"]["fits"]), ("no", "yes"))
        for kv in METHODS:
            longest = int(known[kv]["longest_context"])
            for tokens, fits in ((longest, "yes"), (longest + 1, "no")):
                row = rows("--fits", "128M", "-c", str(tokens))[kv]
                self.assertEqual((row["fits"], row["longest_context"], row["total_mib"] <= 128), (fits, longest, fits == "yes"))
        self.assertEqual(rows("--fits", "16M", "-c", "64")["kivi-2"]["longest_context"], 0)
        self.assertEqual({row["longest_context"] for row in rows("--fits", "8G").values()}, {32768})

    def test_its_forms(self):
        status, out, said, _ = run("inspect", "--fits", "8G", "-c", "32768")
        self.assertEqual((status, said), (0, ""))
        self.assertTrue(out.startswith("## lab-27m in 8192.0 MiB, with a prompt of 32768 tokens\n\n| KV"), out)
        self.assertNotIn("Metadata", out)
        self.assertEqual(run("inspect", "--fits", "8G", "-o", "csv")[1].split("\n")[0], "kv,weights_mib,cache_mib,working_mib,total_mib,fits,longest_context")
        for arguments, message in ((("--fits", "8X"), "--fits takes a size"), (("--fits", "8G", "-c", "40000"), "the model was trained for 32768 tokens"),
                                   (("--fits", "8G", "-c", "8", os.path.join(HERE, "..", "..", "models", "lab-27m.terse.gguf")), "a codebook is no model")):
            status, out, said, _ = run("inspect", *arguments)
            self.assertEqual((status, out, said.count("\n")), (1, "", 0))
            self.assertIn(message, said)


unittest.main(argv=sys.argv[:1] + sys.argv[2:])
