"""What the tests of the Python package share. Each test_*.py is run by ctest, with the package as it is installed in the path for modules and the command
as its first argument: `PYTHONPATH=build/python python3 test_session.py build/bin/terse [TEST...]`. A test without what it needs is skipped, with 77."""
import functools
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import unittest

COMMAND = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else None
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
THREADS = 2
PATIENCE = 120  # seconds for anything that shall happen at all; no test passes or fails by less
PROSE = "The city lies on the northern bank of the river, where the old road from the coast meets"

# The codebooks of the user who runs the tests are not used.
os.environ["XDG_CACHE_HOME"] = os.path.join(tempfile.gettempdir(), "terse-no-cache")


def has(package):
    try:
        return bool(importlib.metadata.distribution(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def need(*packages):
    """Skips the whole test where this Python lacks a package."""
    missing = [package for package in packages if not has(package)]
    if missing:
        sys.stderr.write("skipped: this Python has no %s (pip install %s)\n" % (", ".join(missing), " ".join(missing)))
        sys.exit(77)


def main():
    if COMMAND is None:
        sys.exit("usage: PYTHONPATH=build/python python3 %s build/bin/terse [TEST...]" % sys.argv[0])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])


@functools.lru_cache(maxsize=None)
def model():
    """The built-in model."""
    import terse
    return terse.Model(threads=THREADS)


def run_command(*arguments, cache=None):
    """Runs the command with a user's cache directory; returns what it wrote."""
    environment = dict(os.environ, XDG_CACHE_HOME=cache or os.environ["XDG_CACHE_HOME"])
    result = subprocess.run([COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment)
    if result.returncode:
        raise AssertionError(result.stderr)
    return result


def command(*arguments):
    """What the command writes to standard output, without the newline at its end."""
    return run_command(*arguments).stdout.rstrip("\n")


def article():
    """A text of some 9,000 tokens."""
    with open(os.path.join(ROOT, "data", "demo.txt"), encoding="utf-8") as file:
        return file.read()
