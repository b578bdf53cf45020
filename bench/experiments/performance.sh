#!/usr/bin/env bash
# Makes docs/reports/performance.md: measures, writes the page and its plot.
#
#     bench/experiments/performance.sh [-b BUILD] [-w FOLDER] [-o DOCS] [-t THREADS] [STEP ...]
#
# Steps, all of them in this order when none is named:
#     machine      processor, clock and threads
#     attention    one layer's attention by method and depth, two shapes of model; at one depth with AVX2 too where AVX-512 is the best
#     sealing      encoding a page
#     retrieval    selecting the tokens that a step reads
#     prefill      reading a prompt, by method
#     text         attention of the built-in model over the keys of a real text, and over random keys
#     decode       a whole step of a model in the shape of LLaMA-3.1-8B, by method
#     report       DOCS/performance.md and its plot, an .svg and a .png
# Results that FOLDER already holds are not measured again; remove a file there, or all, to measure anew. On two cores everything takes
# 25 to 30 minutes and needs an otherwise idle machine. For a trial, in the environment:
#     DEPTHS='2048 4096' METHODS='q4_0 commvq-1' DEPTH=2048 PROMPT=512 LAYERS=2 bench/experiments/performance.sh -w trial -o trial
# The model of the step decode has as many of its 32 layers as fit into memory, 16 at most so that it takes a few minutes; its file in
# FOLDER takes 0.3 GB and 0.12 GB for each layer.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
project=$here/../..
reports=$here/../reports
build=$project/build
docs=$project/docs/reports
threads=$(nproc)
work=''
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 1
}
while getopts b:w:o:t:h option; do
    case $option in
    b) build=$OPTARG ;;
    w) work=$OPTARG ;;
    o) docs=$OPTARG ;;
    t) threads=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
work=${work:-$build/performance}
bin=$build/bin
depths=${DEPTHS:-8192 32768 131072}
depth=${DEPTH:-32768}
prompt=${PROMPT:-8192}
[ $# -gt 0 ] || set -- machine attention sealing retrieval prefill text decode report
mkdir -p "$work"

# keep FILE COMMAND ...: writes the command's output to FILE once it is complete.
keep() {
    local file=$work/$1
    shift
    [ ! -e "$file" ] || return 0
    echo "$(date +%H:%M:%S) $(basename "$file"): $*" >&2
    "$@" >"$file.new"
    mv "$file.new" "$file"
}

# The machine's best kernels and, where these are AVX-512's, AVX2's too.
tiers() {
    echo best
    ! grep -qs 'avx512 kernels' "$work"/attention-best-*.txt || echo avx2
}

in_tier() {
    local tier=$1
    shift
    if [ "$tier" = best ]; then "$@"; else TERSE_CPU=$tier "$@"; fi
}

describe_machine() {
    sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1
    sed -n 's/^cpu MHz[^:]*: *//p' /proc/cpuinfo | sort -n | tail -n 1
    echo "$threads"
}

step_machine() { keep machine.txt describe_machine; }

step_attention() {
    local d tier
    for d in $depths; do
        # shellcheck disable=SC2086
        keep "attention-best-$d.txt" "$bin/bench_attention" "$threads" "$d" ${METHODS:-}
    done
    for tier in $(tiers); do
        # shellcheck disable=SC2086
        keep "attention-$tier-$depth.txt" in_tier "$tier" "$bin/bench_attention" "$threads" "$depth" ${METHODS:-}
    done
}

step_sealing() {
    local tier
    for tier in $(tiers); do keep "sealing-$tier.txt" in_tier "$tier" env OMP_NUM_THREADS="$threads" "$bin/bench_sealing" pages; done
}

step_retrieval() {
    local tier
    for tier in $(tiers); do keep "retrieval-$tier.txt" in_tier "$tier" "$bin/bench_retrieval" "$threads" "$depth"; done
}

# model SHAPE LAYERS: a file of random weights.
model() {
    [ -e "$work/$1-$2.gguf" ] || "$bin/make_model" "$1" q4_0 "$work/$1-$2.gguf" "$2"
}

# A whole model by every method would take an hour. Of the last layer a prompt needs keys and values alone, so the time of a layer is the
# difference between two layers and one.
step_prefill() {
    local layers
    for layers in 1 2; do
        [ ! -e "$work/prefill-$layers.json" ] || continue
        model 1b $layers
        keep prefill-$layers.json "$bin/terse" bench -m "$work/1b-$layers.gguf" -t "$threads" --kv all -p "$prompt" -n 0 -d 0 -r 1 -o json
    done
}

# Methods without codebooks or with the built-in one, since random codebooks would turn any keys into random ones.
step_text() {
    local fill
    for fill in random "text -f $project/data/wiki.valid.raw"; do
        # shellcheck disable=SC2086
        keep "keys-${fill%% *}.json" "$bin/terse" bench -t "$threads" -p 0 -n 16 -d "$prompt" -r 3 --fill $fill \
            --kv f16,q8_0,q4_0,kivi-4,kivi-2,million-4,selfindex-2,selfindex-16,streaming-1024 -o json
    done
}

# Layers whose weights, f16 keys and values and those of one more method take 2/3 of the available memory, in MiB.
layers_that_fit() {
    awk -v depth="$depth" '/^MemAvailable/ { n = int(($2 / 1024 * 2 / 3 - 400) / (118 + 2.1 * depth / 256)); if (n < 1) n = 1; if (n > 16) n = 16; print n }' \
        /proc/meminfo
}

step_decode() {
    [ ! -e "$work/decode.json" ] || return 0
    local layers=${LAYERS:-}
    [ -n "$layers" ] || layers=$(layers_that_fit)
    model 8b "$layers"
    echo "$layers" >"$work/layers.txt"
    keep decode.json "$bin/terse" bench -m "$work/8b-$layers.gguf" -t "$threads" --kv all -d "$depth" -n 4 -r 2 -o json
}

step_report() {
    local python=python3
    "$python" -c 'import matplotlib' 2>/dev/null || python=/usr/bin/python3 # Debian's own, where another comes first
    "$python" "$reports/performance_report.py" "$work" "$docs/performance.md"
    "$python" "$reports/plot_performance.py" "$work" "$docs/performance.svg" "$docs/performance.png"
}

for step in "$@"; do
    declare -F "step_$step" >/dev/null || usage
    "step_$step"
done
