#!/usr/bin/env bash
# Everything in docs/fidelity.md: codebooks, measurements, the document and the plot.
#
#     bench/fidelity.sh -m MODEL.gguf -f SCORED_TEXT [-g CALIBRATION_TEXT] [-b BUILD] [-w FOLDER] [-o DOCS] [STEP ...]
#
# Steps, all of them in this order when none is named:
#     codebooks    for every method that learns, and for the ablations
#     main         every method in both protocols, and retrieval tasks
#     directions   more anchors, bits per code, shared codebooks, no window: default protocol
#     weighting    codebooks learned with other weights
#     memory       the peak size of a process for some methods
#     report       DOCS/fidelity.md, fidelity.svg and fidelity.png
# What FOLDER already holds is not made or measured again; remove it to start anew. On two cores the codebooks take an hour, everything
# else two more. For a trial, options for the learning and the measuring program can be added in the environment:
#     LEARN='--chunks 8' MEASURE='-c 2048 --chunks 1 --tasks 1 --memory-tokens 4096' bench/fidelity.sh ...
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
framed='4 2 1 0.75' # with a gain; without weights and anchors antkv-0.375 is cq-0.375
# Weights other than the methods' own: BITS:SCOPE:POWER
weightings='4:part:2 2:part:1 1:part:1 1:head:1 1:head:2'

join() {
    local IFS=,
    echo "$*"
}

# NAME=METHOD ...: codebooks NAME.gguf that learn together.
codebooks() {
    # shellcheck disable=SC2086
    "$build/bin/codebooks" -m "$model" -f "$learn" -w "$work" --books "$(join "$@")" ${LEARN:-}
}

step_codebooks() {
    local b m w scope power books=()
    for b in $bits; do books+=("antkv-$b=antkv-$b" "cq-$b=cq-$b"); done
    for b in $framed; do books+=("antkv-$b-none=antkv-$b:none"); done
    for w in $weightings; do
        IFS=: read -r b scope power <<<"$w"
        books+=("antkv-$b-$scope-$power=antkv-$b:$scope:$power")
    done
    codebooks "${books[@]}"
    books=()
    for m in 4 3 2 32x4 32x6 32x10; do books+=("million-$m=million-$m"); done
    codebooks "${books[@]}" million-4-shared=million-4:shared million-2-shared=million-2:shared
    codebooks antkv-1-shared=antkv-1:shared
}

# METHODS PARTS
measure() {
    # shellcheck disable=SC2086
    "$build/bin/fidelity" -m "$model" -f "$text" -w "$work" --resume --methods "$1" --parts "$2" \
        ${MEASURE:-}
}

step_main() {
    local b methods=(f16 q8_0 q4_0 kivi-4 kivi-2)
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
    for b in $framed; do methods+=("antkv-$b:anchors=0%:codebook=antkv-$b-none"); done
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
