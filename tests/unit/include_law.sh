#!/usr/bin/env bash
# include_law.sh PROJECT: the sources keep the include law of scripts/check-includes, and the script names the includes that break it.
set -eu
project=$1
"$project/scripts/check-includes"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# plant FILE LINE...: a file with these includes
plant() {
    local file=$tree/$1
    mkdir -p "$(dirname "$file")"
    shift
    printf '#include %s\n' "$@" >"$file"
}
fresh() {
    rm -rf "${tree:?}"/*
    plant include/terse.h '<stdint.h>'
    plant src/base/memory.h '<stddef.h>' '"terse.h"'
    plant src/backend/backend.h '"base/memory.h"'
    plant src/backend/cpu/kernels/pq/pq.h '"base/memory.h"'
    plant src/backend/cuda/executor.h '"backend/backend.h"'
    plant src/backend/cuda/ptx.cuh '<stdint.h>'
    plant src/backend/cuda/kv/encode.h '"base/memory.h"'
    plant src/backend/cuda/kv/encode.cu '"backend/cuda/kv/encode.h"' '"backend/cuda/ptx.cuh"' '<cuda_fp16.h>'
    plant src/engine/session.c '"backend/backend.h"' '"terse.h"'
    plant tools/text.h '<terse.h>'
    plant tools/text.c '"text.h"'
}
# accepts WHAT
accepts() {
    "$project/scripts/check-includes" "$tree" >"$tree/out" && return
    echo "refused $1:" && cat "$tree/out"
    failures=$((failures + 1))
}
# names WHAT TEXT: the script fails, and a line of its output begins with TEXT
names() {
    if "$project/scripts/check-includes" "$tree" >"$tree/out" || ! grep -q "^$2" "$tree/out"; then
        echo "did not name $1:" && cat "$tree/out"
        failures=$((failures + 1))
    fi
    fresh
}

fresh
accepts 'a tree that keeps the law'
plant src/engine/engine.c '<stdlib.h>' '"backend/cpu/kernels/pq/pq.h"'
names 'a kernel header in the engine' 'src/engine/engine.c:2: src/engine must not include "backend/cpu/kernels/pq/pq.h" (allowed: '
plant src/base/status.h '"backend/backend.h"'
names 'an include upwards' 'src/base/status.h:1: src/base must not include "backend/backend.h" (allowed: include/ base/)'
plant src/kv/deeper/plan.c '<backend/backend.h>'
names 'an include in a folder below and in angle brackets' 'src/kv/deeper/plan.c:1: src/kv must not include "backend/backend.h"'
plant src/backend/cpu/executor.h '"base/memory.h"'
plant src/train/em.c '"backend/cpu/executor.h"'
names 'the executor in learning' 'src/train/em.c:1: src/train must not include "backend/cpu/executor.h"'
plant src/wild/wild.c '"base/memory.h"'
names 'a folder of which the law says nothing' 'src/wild/wild.c:1: src/wild must not include "base/memory.h"'
plant tools/peek.c '"text.h"' '"base/memory.h"'
names 'an internal header in a tool' 'tools/peek.c:2: tools must not include "base/memory.h"'
plant tools/peek.c '"../src/base/memory.h"'
names 'a way around' 'tools/peek.c:1: there is no "../src/base/memory.h"'
plant src/base/clock.c '"base/lost.h"'
names 'a header that is not there' 'src/base/clock.c:1: there is no "base/lost.h"'
plant src/kv/plan.h '"kv/page.h"'
plant src/kv/page.h '"base/memory.h"'
plant src/kv/page.c '"kv/page.h"' '"kv/state.h"'
plant src/kv/state.h '"kv/plan.h"'
names 'a circle of files' 'src/kv/.*: a circle of files: '
plant src/backend/cuda/kv/rank.cu '"backend/cuda/kv/encode.h"' '"backend/cuda/executor.h"'
names 'the executor in device code of the caches' 'src/backend/cuda/kv/rank.cu:2: src/backend/cuda/kv.cu must not include "backend/cuda/executor.h" (allowed: '
plant src/backend/cuda/tiles.cuh '"base/memory.h"'
names 'host memory in device code' 'src/backend/cuda/tiles.cuh:1: src/backend/cuda.cu must not include "base/memory.h" (allowed: '
plant src/backend/cuda/kv/storage.c '"backend/cuda/ptx.cuh"'
names 'device code in C' 'src/backend/cuda/kv/storage.c:1: C must not include "backend/cuda/ptx.cuh", which is CUDA'
plant src/backend/cuda/kv/storage.c '"backend/cuda/executor.h"'
names 'the executor in the caches' 'src/backend/cuda/kv/storage.c:1: src/backend/cuda/kv must not include "backend/cuda/executor.h"'
plant src/backend/cuda/kv/page.cu '"backend/cuda/kv/encode.cu"'
names 'a source of CUDA that is included' 'src/backend/cuda/kv/page.cu:1: there is no "backend/cuda/kv/encode.cu"'
plant src/engine/engine.c '"backend/cuda/executor.h"'
names 'a backend in the engine' 'src/engine/engine.c:1: src/engine must not include "backend/cuda/executor.h"'
plant src/backend/cuda/kv/encode.cu '"backend/cuda/kv/encode_common.cuh"'
plant src/backend/cuda/kv/encode_common.cuh '"backend/cuda/kv/encode.h"'
names 'a circle of files of CUDA' 'src/backend/cuda/kv/.*: a circle of files: '
plant src/kv/page.h '"base/memory.h"'
plant src/kv/page_private.h '"kv/page.h"'
plant src/kv/page.c '"kv/page_private.h"'
accepts 'a source, its header and its private header'

[ "$failures" = 0 ] || exit 1
echo 'planted offenders were named'
