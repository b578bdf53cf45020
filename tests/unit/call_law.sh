#!/usr/bin/env bash
# call_law.sh PROJECT BUILD CC: the objects of a build keep the include law in their calls, and scripts/check-calls names the calls that break it.
set -eu
project=$1 build=$2 cc=$3
command -v nm >/dev/null || { echo 'skipped: nm, which lists the calls of an object, is not here (package binutils)'; exit 77; }
"$project/scripts/check-calls" "$build"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# plant FILE CODE [OBJECT]: a source, which declares no functions, and its object, by default of the library
plant() {
    local object=$tree/build/${3:-CMakeFiles/terse_objects.dir/$1.o}
    mkdir -p "$(dirname "$tree/$1")" "$(dirname "$object")"
    printf '%s\n' "$2" >"$tree/$1"
    "$cc" -std=gnu89 -w -x c -c "$tree/$1" -o "$object"
}
cuda() { plant "$1" "$2" "CMakeFiles/terse_cuda_objects.dir/$1.o"; }
emulated() { plant "$1" "$2" "tests/cuda/emulation/CMakeFiles/terse_cuda_emulated.dir/translated/${1#src/}.cpp.o"; }
lawful() {
    plant src/base/memory.c 'int memory_taken; void memory_free(void) { free(0); }'
    plant src/backend/cpu/kernels/pq/scalar.c 'void pq_add(void) {}'
    plant src/backend/cpu/kv/storage.c 'void storage_new(void) { memory_free(); pq_add(); }'
    cuda src/backend/cuda/kv/storage.c 'void storage_new(void) { memory_free(); encode(); }'
    cuda src/backend/cuda/kv/prompt.c 'void prompt_new(void) { storage_new(); }'
    emulated src/backend/cuda/kv/encode.cu 'void encode(void) {}'
    plant src/engine/session.c 'extern int memory_taken; void session_new(void) { memory_free(); memory_taken = 0; }'
}
fresh() {
    rm -rf "$tree/src" "$tree/build"
    cp -r "$tree/lawful/." "$tree"
}
# accepts WHAT
accepts() {
    if ! "$project/scripts/check-calls" "$tree/build" "$tree" >"$tree/out" 2>&1; then
        echo "refused $1:" && cat "$tree/out"
        failures=$((failures + 1))
    fi
    fresh
}
# names WHAT LINE: the script fails, and LINE begins a line of its output
names() {
    if "$project/scripts/check-calls" "$tree/build" "$tree" >"$tree/out" 2>&1 || ! awk -v line="$2" 'index($0, line) == 1 { found = 1 } END { exit !found }' "$tree/out"; then
        echo "did not name $1:" && cat "$tree/out"
        failures=$((failures + 1))
    fi
    fresh
}

lawful
mkdir "$tree/lawful"
mv "$tree/src" "$tree/build" "$tree/lawful"
fresh
accepts 'a tree that keeps the law'
plant src/engine/engine.c 'void engine_new(void) { pq_add(); }'
names 'a kernel that the engine calls' 'src/engine/engine.c: calls pq_add, which is in src/backend/cpu/kernels/pq/scalar.c: src/engine must not include its header (allowed: '
plant src/base/memory.c 'void memory_free(void) { session_new(); }'
names 'a call upwards' 'src/base/memory.c: calls session_new, which is in src/engine/session.c: src/base must not include its header (allowed: base/)'
plant src/kv/plan.c 'void plan(void) { prompt_new(); }'
names 'a call of the cache into a backend' 'src/kv/plan.c: calls prompt_new, which is in src/backend/cuda/kv/prompt.c: src/kv must not'
plant src/wild/wild.c 'void wild(void) { memory_free(); }'
names 'a folder of which the law says nothing' 'src/wild/wild.c: calls memory_free, which is in src/base/memory.c: src/wild must not'
emulated src/backend/cuda/kv/encode.cu 'void encode(void) { prompt_new(); }'
names 'device code that calls the host' 'src/backend/cuda/kv/encode.cu: calls prompt_new, which is in src/backend/cuda/kv/prompt.c: src/backend/cuda/kv.cu must not'
emulated src/backend/cuda/kv/rank.cu 'void rank(void) { encode(); }'
accepts 'device code that calls device code of its folder'
plant src/kv/page.c 'void page(void) { plan(); }'
plant src/kv/plan.c 'void plan(void) { state(); }'
plant src/kv/state.c 'void state(void) { page(); }'
names 'a circle of three' 'src/kv/state.c: a circle of calls: src/kv/page.c -> src/kv/plan.c (plan) -> src/kv/state.c (state) -> src/kv/page.c (page)'
plant src/kv/page.c 'extern void *state_ops[]; void *page(void) { return state_ops[0]; }'
plant src/kv/state.c 'void page(void); void *state_ops[] = {page};'
names 'a circle through a table' 'src/kv/state.c: a circle of calls: src/kv/page.c -> src/kv/state.c (state_ops) -> src/kv/page.c (page)'
cuda src/backend/cuda/kv/storage.c 'void storage_new(void) { prompt_new(); }'
names 'a circle in the backend cuda, of a function that both backends have' 'src/backend/cuda/kv/storage.c: a circle of calls: src/backend/cuda/kv/prompt.c -> src/backend/cuda/kv/storage.c (storage_new) -> '
plant src/base/status.c 'void status(void) { session_new(); }'
rm "$tree/src/base/status.c"
accepts 'the object of a source that is gone'
rm -r "$tree/build/CMakeFiles" "$tree/build/tests"
names 'a build without objects' 'scripts/check-calls: no calls read: build the target terse_objects first'
rm -r "$tree/build"
names 'a build that is not there' 'check-calls: no such folder: give that of a finished build'

[ "$failures" = 0 ] || exit 1
echo 'planted offenders were named'
