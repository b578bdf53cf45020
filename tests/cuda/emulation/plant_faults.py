#!/usr/bin/env python3
"""Plants faults into the caches of the GPU, one at a time, and shows that the comparison with dense attention finds each of them.

    plant_faults.py [--source FOLDER] [--build FOLDER] [NUMBER ...]

Works in a copy of the source, so that nothing of it changes; builds test_cuda_cache with emulated kernels there and runs the test that reads
every method. Without faults it must pass, with each of them it must fail. Takes some minutes on two cores. Exit status 1: a fault was not found."""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile

KV = "src/backend/cuda/kv/"
TEST = "test_cuda_cache_emulated"
FAULTS = (  # file, text that occurs once in it, what takes its place, the fault
    (KV + "attend_transform.cuh", "unit, gain, mean)", "unit, gain, 0 * mean)", "terse-N: the mean of keys is zero"),
    (KV + "attend_transform.cuh", "- zero) * unit", "- 0 * zero) * unit", "terse-N: levels of keys are not centred"),
    (KV + "attend_transform.cuh", "w[i] = weight * gain_of(", "w[i] = weight + 0 * gain_of(", "terse-N: gains of values are left out"),
    (KV + "attend_transform_runs.cuh", "sine = first ? angle.y : -angle.y", "sine = first ? -angle.y : angle.y", "terse-N: queries are rotated the wrong way"),
    (KV + "attend_transform_kernel.cuh", "LEVEL_ZERO * r.gained[n]", "0 * r.gained[n]", "terse-N: levels of values are not centred"),
    (KV + "attend_transform_kernel.cuh", "values.mean[channel] * total.y", "0 * total.y", "terse-N: the mean of values is zero"),
    (KV + "attend_scaled.cuh", "-K::zero_code(a.codec[0]) * sum", "0 * sum", "q4_0: codes of keys are not centred"),
    (KV + "attend_scaled.cuh", "const float offset = V::offset(codec);", "const float offset = 0;", "q4_0 and kivi: values without their zero points"),
    (KV + "attend_scaled.cuh", "mma(zero[h][n], z0, z0, z1, z1, own.x, own.y);", ";", "kivi: keys without their zero points"),
    (KV + "attend_centroids.cuh", "if (keys.normalized) apply_gains(", "if (false) apply_gains(", "antkv: keys without their gains"),
    (KV + "attend_centroids.cuh", "in_runs ? from / ROPE_RUN_TOKENS : 0", "in_runs ? (from + PAGE_TOKENS) / ROPE_RUN_TOKENS : 0", "cq: the last page of a rope run is read in the next one's frame"),
    (KV + "attend_common.cuh", "first = (uint32_t)(n * s.part / s.parts);", "first = (uint32_t)(n * s.part / s.parts) - (s.part > 0);", "the last page of a split-K part is read by the next part, too"),
    (KV + "attend_common.cuh", "sums.x * a + more.x * b", "sums.x * a + more.x * a", "partial states are merged with the wrong weight"),
    (KV + "attend_common.cuh", "into.y * a + from.y * b", "into.y + from.y", "sums of exponentials are merged without their maxima"),
    (KV + "append.cu", "place_of(s, a.heads, a.layer, head, 1, query.position)", "place_of(s, a.heads, a.layer, head, 1, query.position + 1)", "new values lie a row too far in the window"),
    (KV + "append.cu", "rotate_row(a.rotary, hd, query.position, q,", "rotate_row(a.rotary, hd, query.position + 1, q,", "queries are rotated one position too far"),
    ("src/kv/read_lists.c", "read_slots_of(set->first, set->count, from, UINT64_MAX)", "read_slots_of(set->first, set->count - 1, from, UINT64_MAX)", "the last token of each page is not read"),
    (KV + "views.c", "(uint32_t)cache->base.plan.after.exact;", "(uint32_t)cache->base.plan.after.exact - (cache->base.plan.after.exact > 0);", "one of the first tokens is not read"),
    ("src/kv/read_lists.c", "first > lists->from ? first : lists->from}", "(first > lists->from ? first : lists->from) - (first > 4)}", "the last token of the last page is read twice"),
    (KV + "window.c", "(set->first - cache->window_origin)", "(set->first + 1 - cache->window_origin)", "pages are encoded from the next token on"),
    ("src/kv/cache.c", "base->n_anchors += plan->anchors;", "base->n_anchors += plan->anchors; if (base->pages.n_sealed > 1) base->pages.sets[base->pages.n_sealed - 1] = base->pages.sets[base->pages.n_sealed - 2];", "a page is read twice, another not at all"),
)


def sh(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def refresh(source, to):
    """Copies a file that differs: what a run that was interrupted has planted is built anew, and nothing else."""
    if not os.path.exists(to) or not filecmp.cmp(source, to, shallow=False):
        shutil.copy(source, to)
    return to


def build(folder):
    done = sh("cmake", "--build", folder, "-j", str(os.cpu_count()), "--target", TEST)
    if done.returncode:
        sys.exit("plant_faults.py: it does not build:\n" + done.stdout[-2000:])


def passes(folder):
    return sh(os.path.join(folder, "bin", TEST), "every_method*", timeout=1200).returncode == 0


def plant(source, fault):
    path = os.path.join(source, fault[0])
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.count(fault[1]) != 1:
        sys.exit(f"plant_faults.py: {fault[0]} has {text.count(fault[1])} times: {fault[1]}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(fault[1], fault[2]))
    return path, text


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default=os.path.join(here, "..", "..", ".."))
    parser.add_argument("--build", help="a folder to keep, so that a second run builds less")
    parser.add_argument("numbers", nargs="*", type=int, help="faults to plant, from 1 on; all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.build or os.path.join(scratch, "build")
        source = os.path.join(folder, "source")
        ignored = shutil.ignore_patterns("build*", ".git")
        shutil.copytree(given.source, source, ignore=ignored, copy_function=refresh, dirs_exist_ok=True)
        done = sh("cmake", "-S", source, "-B", folder, "-DTERSE_CUDA=OFF", "-DTERSE_CUDA_EMULATED=ON")
        if done.returncode:
            sys.exit("plant_faults.py: it cannot be configured:\n" + done.stdout[-2000:])
        build(folder)
        if not passes(folder):
            sys.exit("plant_faults.py: the test fails without a fault")
        chosen = given.numbers or range(1, len(FAULTS) + 1)
        found = 0
        for number in chosen:
            fault = FAULTS[number - 1]
            path, text = plant(source, fault)
            build(folder)
            failed = not passes(folder)
            found += failed
            print(f"{number:3}  {'found' if failed else 'NOT FOUND'}  {fault[3]}", flush=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        print(f"{found} of {len(chosen)} faults were found")
    sys.exit(found != len(chosen))


if __name__ == "__main__":
    main()
