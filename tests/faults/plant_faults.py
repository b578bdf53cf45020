#!/usr/bin/env python3
"""Plants faults into codecs, policies and caches, of the processor and of the GPU, and shows that the tests find each of them (mutation testing).

    plant_faults.py cpu|cuda [--source FOLDER] [--build FOLDER] [NUMBER ...]
    plant_faults.py check [--source FOLDER]

Works in a copy of the source, so that nothing of it changes. The faults of a table, faults_cpu.py or faults_cuda.py, are built into the copy at once,
each behind a switch that the environment turns on, so that nothing is compiled anew from one fault to the next. Then the programs run, first without
a fault, when they must pass, and then with one fault at a time, when the program that the table names must fail, crash or hang. Those of the GPU run
with emulated kernels, which needs the CUDA toolkit's headers. With --build the folder stays, and a second run builds only what has changed since.
`check` only says whether every text of both tables stands once in its file, and every test in its source; it takes a fraction of a second.

Exit status 1: a fault was not found, or a table no longer fits the source."""

import argparse
import concurrent.futures
import filecmp
import fnmatch
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import faults_cpu
import faults_cuda

TABLES = {"cpu": faults_cpu.FAULTS, "cuda": faults_cuda.FAULTS}
WAIT = 900  # seconds for a program

SWITCH = """#ifndef PLANTED_FAULTS
#define PLANTED_FAULTS
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdlib.h>
static inline int fault_is(int number) {
    static int planted = -1;
    if (planted < 0) planted = getenv("PLANTED_FAULT") ? atoi(getenv("PLANTED_FAULT")) : 0;
    return planted == number;
}
#endif
#line 1
"""


def fail(message):
    sys.exit("plant_faults.py: " + message)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


# ---- The tables


def plant(source, faults):
    """Returns the texts of the files with faults, by name, and what does not fit the source."""
    texts, wrong = {}, []
    for number, (name, text, instead, _, fault) in enumerate(faults, 1):
        texts[name] = texts.get(name) or SWITCH + read(source, name)
        if texts[name].count(text) != 1:
            wrong.append(f"fault {number}, {fault}: {name} has {texts[name].count(text)} times: {text}")
        if "FAULT" not in instead:
            wrong.append(f"fault {number}, {fault}: nothing turns on what takes the text's place: {instead}")
        texts[name] = texts[name].replace(text, instead.replace("FAULT", f"fault_is({number})"))
    return texts, wrong


def source_of(source, program):
    """Returns the source of a test program: test_cuda_NAME_emulated may be that of tests/kv/test_NAME.c on the GPU."""
    name = program.removesuffix("_emulated")
    found = glob.glob(os.path.join(source, "tests", "*", name + ".c")) or glob.glob(os.path.join(source, "tests", "kv", name.replace("_cuda_", "_") + ".c"))
    return found[0] if found else None


def missing_tests(source, faults):
    for test in sorted({test for _, _, _, test, _ in faults}):
        program, _, pattern = test.partition(" ")
        path = source_of(source, program)
        if not path:
            yield f"there is no source of the test {program}"
        elif pattern and not fnmatch.filter(re.findall(r"cmocka_unit_test\w*\(\s*(\w+)", read(path)), pattern):
            yield f"{path} has no test {pattern}"


def check(source):
    wrong = []
    for backend, faults in TABLES.items():
        wrong += [f"{backend}: {line}" for line in plant(source, faults)[1] + list(missing_tests(source, faults))]
    if wrong:
        fail("the tables no longer fit the source:\n" + "\n".join(wrong))
    print(", ".join(f"{len(faults)} faults of {backend}" for backend, faults in TABLES.items()) + " stand once in their files")


# ---- Building


def sh(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def copy_source(source, texts, folder):
    """Copies the files that differ, those of `texts` with the faults."""

    def refresh(a, b):
        text = texts.get(os.path.relpath(a, source))
        if text is None:
            if not os.path.exists(b) or not filecmp.cmp(a, b, shallow=False):
                shutil.copy(a, b)
        elif not os.path.exists(b) or read(b) != text:
            with open(b, "w", encoding="utf-8") as file:
                file.write(text)
        return b

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("build*", ".git"), copy_function=refresh, dirs_exist_ok=True)


def build(folder, cuda, programs):
    emulated = "ON" if cuda else "OFF"
    done = sh("cmake", "-S", os.path.join(folder, "source"), "-B", folder, "-DTERSE_CUDA=OFF", f"-DTERSE_CUDA_EMULATED={emulated}")
    if done.returncode:
        fail("it cannot be configured:\n" + done.stdout[-2000:])
    done = sh("cmake", "--build", folder, "-j", str(os.cpu_count()), "--target", *programs)
    if done.returncode:
        fail("it does not build:\n" + done.stdout[-4000:])


# ---- Running


def passes(folder, test, number=0):
    """Returns whether a test passes, and the seconds that it took."""
    program, *pattern = test.split()
    begin = time.monotonic()
    try:
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "PLANTED_FAULT": str(number)}
        passed = not sh(os.path.join(folder, "bin", program), *pattern, timeout=WAIT, env=environment).returncode
    except subprocess.TimeoutExpired:
        passed = False
    return passed, time.monotonic() - begin


def run(folder, source, backend, chosen):
    faults = TABLES[backend]
    texts, wrong = plant(source, faults)
    if wrong:
        fail("the table no longer fits the source:\n" + "\n".join(wrong))
    tests = sorted({faults[number - 1][3] for number in chosen})
    copy_source(source, texts, os.path.join(folder, "source"))
    build(folder, backend == "cuda", sorted({test.split()[0] for test in tests}))
    found = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for test, (passed, _) in zip(tests, pool.map(lambda test: passes(folder, test), tests)):
            if not passed:
                fail(f"{test} fails without a fault: {folder}/bin")
        for number, (passed, seconds) in zip(chosen, pool.map(lambda number: passes(folder, faults[number - 1][3], number), chosen)):
            _, _, _, test, fault = faults[number - 1]
            found += not passed
            print(f"{number:3}  {'NOT FOUND' if passed else 'found':9}  {seconds:6.1f} s  {test:50}  {fault}", flush=True)
    print(f"{found} of {len(chosen)} faults were found")
    return found == len(chosen)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*TABLES, "check"])
    parser.add_argument("--source", default=os.path.join(here, "..", ".."))
    parser.add_argument("--build", help="a folder to keep, so that a second run builds less")
    parser.add_argument("numbers", nargs="*", type=int, help="faults to plant, from 1 on; all")
    given = parser.parse_intermixed_args()
    source = os.path.realpath(given.source)
    if given.what == "check":
        return check(source)
    chosen = given.numbers or list(range(1, len(TABLES[given.what]) + 1))
    if not all(1 <= number <= len(TABLES[given.what]) for number in chosen):
        fail(f"the faults of {given.what} are numbered from 1 to {len(TABLES[given.what])}")
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(not run(os.path.abspath(given.build or scratch), source, given.what, chosen))


if __name__ == "__main__":
    main()
