#!/usr/bin/env bash
# Everything in docs/fidelity.md: codebooks, measurements, the document and the plot.
#
#     bench/fidelity.sh -m MODEL.gguf -f SCORED_TEXT [-g CALIBRATION_TEXT] [-b BUILD] [-w FOLDER] [-o DOCS] [STEP ...]
#
# Steps, all of them in this order when none is named:
#     codebooks    terse calibrate for every method that learns, and for the ablations
#     main         every method in both protocols, and retrieval tasks
#     directions   more anchors, bits per code, shared codebooks, no window: default protocol
#     weighting    codebooks learned with other weights
#     memory       the peak size of a process for some methods
#     report       DOCS/fidelity.md, fidelity.svg and fidelity.png
# What FOLDER already holds is not made or measured again; remove it to start anew. On two cores the codebooks take two hours, everything
# else two more. For a trial, options for terse calibrate and for the measuring program can be added in the environment:
#     CALIBRATE='--chunks 8' MEASURE='-c 2048 --chunks 1 --tasks 1 --memory-tokens 4096' bench/fidelity.sh ...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$here/../build
docs=$here/../docs
learn=$here/../data/wiki.valid.raw
model='' text='' work=''
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 1
}
while getopts m:f:g:b:w:o:h option; do
    case $option in
    m) model=$OPTARG ;;
    f) text=$OPTARG ;;
    g) learn=$OPTARG ;;
    b) build=$OPTARG ;;
    w) work=$OPTARG ;;
    o) docs=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
if [ -z "$model" ] || [ -z "$text" ]; then usage; fi
work=${work:-$build/fidelity}
[ $# -gt 0 ] || set -- codebooks main directions weighting memory report
mkdir -p "$work/codebooks"

bits='4 2 1 0.75 0.375'
low='1 0.75 0.375'
# Weights other than the methods' own: BITS:SCOPE:POWER
weightings='4:sub-vector:2 2:sub-vector:1 1:sub-vector:1 1:head:1 1:head:2 0.75:sub-vector:1 0.375:sub-vector:1'

join() {
    local IFS=,
    echo "$*"
}

# NAME METHOD [OPTION ...]: a codebook NAME.gguf.
codebook() {
    local file=$work/codebooks/$1.gguf method=$2
    shift 2
    # shellcheck disable=SC2086
    [ -e "$file" ] || "$build/bin/terse" calibrate -m "$model" --kv "$method" -f "$learn" -o "$file" "$@" ${CALIBRATE:-}
}

step_codebooks() {
    local b m w scope power
    for b in $bits; do
        codebook "antkv-$b" "antkv-$b"
        codebook "antkv-$b-none" "antkv-$b" --weighting none
        codebook "cq-$b" "cq-$b"
    done
    for m in million-4 million-3 million-2 million-32x4 million-32x6 million-32x10; do codebook $m $m; done
    for m in million-4 million-2 antkv-1; do codebook $m-shared $m --shared; done
    for w in $weightings; do
        IFS=: read -r b scope power <<<"$w"
        codebook "antkv-$b-$scope-$power" "antkv-$b" --weighting "$scope" --power "$power"
    done
}

# METHODS PARTS
measure() {
    # shellcheck disable=SC2086
    "$build/bin/fidelity" -m "$model" -f "$text" -w "$work" --resume --methods "$1" --parts "$2" \
        ${MEASURE:-}
}

step_main() {
    local b methods=(f16 q8_0 q4_0)
    for b in $bits; do methods+=("cq-$b" "antkv-$b:anchors=0%" "antkv-$b"); done
    measure "$(join "${methods[@]}" million-4 million-3 million-2)" default,paper,needles
}

step_directions() {
    local b m anchors methods=()
    for b in $low; do
        for anchors in 2 5 10; do methods+=("antkv-$b:anchors=$anchors%"); done
    done
    methods+=(million-32x4 million-32x6 million-32x10)
    for m in million-4 million-2 antkv-1; do methods+=("$m:codebook=$m-shared"); done
    for m in q4_0 antkv-4 antkv-1 antkv-0.375 million-4 million-2; do methods+=("$m:tail=0"); done
    measure "$(join "${methods[@]}")" default
}

step_weighting() {
    local b w scope power methods=()
    for b in $bits; do methods+=("antkv-$b:anchors=0%:codebook=antkv-$b-none"); done
    for w in $weightings; do
        IFS=: read -r b scope power <<<"$w"
        methods+=("antkv-$b:anchors=0%:codebook=antkv-$b-$scope-$power")
    done
    measure "$(join "${methods[@]}")" default,paper
}

step_memory() {
    local m
    for m in f16 q8_0 q4_0 antkv-4 antkv-1 antkv-0.375 million-4; do measure $m memory; done
}

step_report() {
    local python=python3
    "$python" -c 'import matplotlib' 2>/dev/null || python=/usr/bin/python3 # Debian's own, where another comes first
    "$python" "$here/fidelity_report.py" "$work" "$docs/fidelity.md"
    "$python" "$here/plot_fidelity.py" "$work" "$docs/fidelity.svg" "$docs/fidelity.png"
}

for step in "$@"; do
    declare -F "step_$step" >/dev/null || usage
    "step_$step"
done
