#!/usr/bin/env bash
# run.sh BUILD_DIR: runs the micro benchmarks and `terse bench` (`make bench`). Every figure stands beside a limit measured in the same run
# (memory bandwidth, the GEMM library): read ratios, on an otherwise idle machine.
#
# The models have random weights in the shape of LLaMA-3.2-1B, so that the weights exceed every processor cache. They are made once, in
# BUILD_DIR/bench-models (2 GB).
set -eu
build=$1
bin=$build/bin
models=$build/bench-models
mkdir -p "$models"

run() {
    echo
    echo "\$ $*"
    "$@"
}

for type in q8_0 q4_0; do
    [ -e "$models/1b-$type.gguf" ] || run "$bin/make_model" 1b $type "$models/1b-$type.gguf"
    run "$bin/terse" bench -m "$models/1b-$type.gguf" -p 0 -n 16 -d 0 -r 3
done
run "$bin/terse" bench -m "$models/1b-q8_0.gguf" -p 0 -n 8 -d 4096,32768 -r 2 --kv f16,q8_0,q4_0
run "$bin/terse" bench -m "$models/1b-q4_0.gguf" -p 0 -n 32 -d 32768 -r 2 \
    --kv f16,selfindex-2,quest-2448,streaming-1024,mat-1024,snapkv-1024
run "$bin/bench_attention"
run "$bin/bench_retrieval"
run "$bin/bench_weights" 1
run "$bin/bench_weights" 2
run "$bin/bench_prefill" "$models/1b-q8_0.gguf" 2048
run "$bin/bench_calibrate"
for test in test_gemm test_kernels test_kernels_scaled; do run "$bin/$test" --bench; done
