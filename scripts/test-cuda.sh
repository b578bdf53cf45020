#!/usr/bin/env bash
# test-cuda.sh [DIRECTORY]: the tests of the backend cuda on this machine's GPU, alone and under compute-sanitizer, and a table of how they went.
# Exits with 1 if any failed, with 77 if there is no GPU that they can use.
#
# Without DIRECTORY the tests are built in build-cuda ($BUILD) first, which needs the CUDA toolkit. With one, the programs test_* in it are run
# as they are: executables that were carried to a machine with a GPU need no compiler there, and the sources for a few tests alone, which are skipped
# without them; TERSE_PROJECT names the folder where they are, if it is not the one that the tests were built from.
#
# memcheck watches all of them; racecheck, which watches shared memory, and initcheck those of kernels alone: of whole models they take too long.
# JOBS limits the build; LIMIT the seconds of one run (600); TOOLS names other tools than "memcheck racecheck initcheck", or "" for none.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=${TOOLS-memcheck racecheck initcheck}
limit=${LIMIT:-600}
skipped=77
whole='^test_(device|cuda_|backend|executor|forward|engine)' # not tests of kernels
export OMP_WAIT_POLICY=passive
PATH=$PATH:/usr/local/cuda/bin

fail() {
    echo "test-cuda.sh: $*" >&2
    exit 1
}

if [ $# -gt 1 ]; then fail "usage: scripts/test-cuda.sh [DIRECTORY]"; fi
programs=()
if [ $# = 1 ]; then
    for program in "$1"/test_*; do
        [ -f "$program" ] && [ -x "$program" ] && programs+=("$program")
    done
    [ ${#programs[@]} -gt 0 ] || fail "no programs test_* in $1"
else
    build=$(realpath -m "${BUILD:-$here/build-cuda}")
    command -v nvcc >/dev/null || fail "no nvcc to build the tests with: install the CUDA toolkit, or name a directory of built tests"
    for source in "$here"/tests/cuda/test_*.c; do
        programs+=("$build/bin/$(basename "$source" .c)")
    done
    for source in $(grep -l '^#include "support/backend_under_test.h"' "$here"/tests/kv/test_*.c); do # tests of every backend
        name=$(basename "$source" .c)
        programs+=("$build/bin/test_cuda_${name#test_}")
    done
    cmake -S "$here" -B "$build" -DTERSE_CUDA=ON >/dev/null || fail "cmake failed in $build"
    cmake --build "$build" -j "${JOBS:-$(nproc)}" --target "${programs[@]##*/}" || fail "the tests do not build"
fi
for tool in $tools; do
    command -v compute-sanitizer >/dev/null || fail "no compute-sanitizer, which comes with the CUDA toolkit: install it, or set TOOLS= to go without"
done

log=$(mktemp)
table=$(mktemp)
trap 'rm -f "$log" "$table"' EXIT
failed=0 ran=0

# NAME HOW COMMAND...: runs it, notes how it went, shows its last lines if it failed.
note() {
    local name=$1 how=$2 before=$SECONDS status=0 word=passed
    shift 2
    timeout "$limit" "$@" </dev/null >"$log" 2>&1 || status=$?
    case $status in
    0) ran=$((ran + 1)) ;;
    "$skipped") word=skipped ;;
    124) word="over $limit s" ;;
    *) word="FAILED ($status)" ;;
    esac
    printf '%-28s %-10s %-14s %5d s\n' "$name" "$how" "$word" $((SECONDS - before)) | tee -a "$table"
    case $status in
    0) grep '^skipped:' "$log" || true ;; # tests of it that lack a file
    "$skipped") tail -n 1 "$log" ;; # why
    *)
        failed=$((failed + 1))
        grep -E '^(=========|\[  ?(ERROR|FAILED))|[Ee]rror' "$log" | head -n 20
        ;;
    esac
    return "$status"
}

# Tests ask for memory that no GPU has, and one reads the host's tables alone.
watch=(--error-exitcode 1 --report-api-errors no --require-cuda-init no)
for program in "${programs[@]}"; do
    name=$(basename "$program")
    note "$name" alone "$program" || continue
    for tool in $tools; do
        if [ "$tool" != memcheck ] && [[ $name =~ $whole ]]; then continue; fi
        note "$name" "$tool" compute-sanitizer --tool "$tool" "${watch[@]}" "$program"
    done
done

echo
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || gpu=
echo "${gpu:-no GPU}, $(date -u +%F)"
cat "$table"
if [ "$failed" -gt 0 ]; then fail "$failed of these failed"; fi
if [ "$ran" = 0 ]; then exit "$skipped"; fi
