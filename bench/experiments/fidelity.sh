#!/usr/bin/env bash
# Makes docs/reports/fidelity.md: learns codebooks, measures, writes the page and its plots.
#
#     bench/experiments/fidelity.sh -m MODEL.gguf -f SCORED_TEXT [-s MODEL_WITH_SINKS.gguf] [-g CALIBRATION_TEXT] [-b BUILD] [-w FOLDER]
#         [-o DOCS] [-j JOBS] [STEP ...]
#
# Steps; when none is named, `codebooks main report`:
#     codebooks    for every method that learns, and for the ablations
#     main         every method in both protocols, and retrieval tasks for those of a bit and more
#     report       DOCS/fidelity.md, and an .svg and a .png of each of its plots
# Ablations, which add sections to the page and take some seven hours of two cores together:
#     directions   more anchors, bits per code, shared codebooks, no window: default protocol
#     weighting    codebooks learned with other weights of samples
#     memory       peak resident size of a process for some methods
#     commvq       errors of CommVQ's key tables, times of its attention, and more retrieval tasks for methods of as many bits
#     choose       methods that read or keep selected tokens, ablations, other caches read by their index, recall of indexes
#     deep         such methods with prompts of 30,720 tokens
#     domains      codebooks learned on prose, source code and a list of keys and values, each measured on all three
# Another page:
#     terse        terse-N with and without a profile, and what it is compared with; with -s on that model too. Uses `codebooks`
#     terse_report DOCS/terse.md and its plots
# Results that FOLDER already holds are not made or measured again; remove it to start anew. On two cores the codebooks take an hour,
# the other steps of the page two more. Many processors are used better by -j JOBS: as many processes share the methods of a step. The programs may come from
# another machine: BUILD then needs its folder bin alone, but for the libraries; terse --version says of which commit they are. For a trial, options for the learning and the measuring program can be added in the environment:
#     LEARN='--chunks 8' MEASURE='-c 2048 --chunks 1 --tasks 1 --memory-tokens 4096' bench/experiments/fidelity.sh ...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
project=$here/../..
reports=$here/../reports
build=$project/build
docs=$project/docs/reports
learn=$project/data/wiki.valid.raw
model='' text='' work='' sinks='' jobs=1
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 1
}
while getopts m:f:s:g:b:w:o:j:h option; do
    case $option in
    m) model=$OPTARG ;;
    f) text=$OPTARG ;;
    s) sinks=$OPTARG ;;
    g) learn=$OPTARG ;;
    b) build=$OPTARG ;;
    w) work=$OPTARG ;;
    o) docs=$OPTARG ;;
    j) jobs=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
if [ -z "$model" ] || [ -z "$text" ]; then usage; fi
work=${work:-$build/fidelity}
[ $# -gt 0 ] || set -- codebooks main report
mkdir -p "$work/codebooks"

rates='4 3 2 1 0.5' # of terse-N
bits='4 2 1 0.75 0.375'
low='1 0.75 0.375'
gained='4 2 1 0.75' # antkv with a gain; without weights and anchors antkv-0.375 is cq-0.375
# Weights other than the methods' own: BITS:SCOPE:POWER
weightings='4:part:2 2:part:1 1:part:1 1:head:1 1:head:2'
# Methods of a bit and more, of which retrieval tasks are asked
told='f16 q8_0 q4_0 kivi-4 kivi-2 cq-2 cq-1 antkv-4 antkv-2 antkv-1 commvq-2 commvq-1 million-4 million-2 terse-4 terse-3 terse-2 terse-1'
# CommVQ and methods of about as many bits
matched='kivi-2 million-2 cq-2 antkv-2:anchors=0% antkv-2 commvq-2 commvq-2:anchors=1% cq-1 antkv-1:anchors=0% antkv-1 commvq-1 commvq-1:anchors=1%'
# Methods that select tokens, their ablations, and other caches read by the same index
selected='selfindex-2 selfindex-16 selfindex-2:read=96 selfindex-16:read=96 quest-160 quest-160:read=7.5% snapkv-160'
ablations='selfindex-2:anchors=0% selfindex-16:index=signs selfindex-2:index=signs kivi-2:read=7.5%:anchors=64'
indexed='q4_0:read=7.5% million-4:read=7.5% antkv-2:read=7.5% commvq-2:read=7.5%'
whole='selfindex-2:read=100% selfindex-2:anchors=0%:read=100% selfindex-2:read=160:anchors=0% selfindex-16:anchors=0%'
domains='prose code list'

join() {
    local IFS=,
    echo "$*"
}

# NAME=METHOD ...: codebooks NAME.gguf, learned in one pass.
codebooks() {
    # shellcheck disable=SC2086
    "$build/bin/codebooks" -m "$model" -f "$learn" -w "$work" --books "$(join "$@")" ${LEARN:-}
}

step_codebooks() {
    local b m w scope power books=()
    for b in $bits; do books+=("antkv-$b=antkv-$b" "cq-$b=cq-$b"); done
    for b in $gained; do books+=("antkv-$b-none=antkv-$b:none"); done
    for w in $weightings; do
        IFS=: read -r b scope power <<<"$w"
        books+=("antkv-$b-$scope-$power=antkv-$b:$scope:$power")
    done
    codebooks "${books[@]}"
    codebooks commvq-2=commvq-2 commvq-1=commvq-1
    books=()
    for m in 4 3 2 32x4 32x6 32x10; do books+=("million-$m=million-$m"); done
    codebooks "${books[@]}" million-4-shared=million-4:shared million-2-shared=million-2:shared
    codebooks antkv-1-shared=antkv-1:shared
    profile "$model" "$work"
}

# MODEL FOLDER: one profile serves every rate.
profile() {
    local b folder=$2/codebooks
    mkdir -p "$folder"
    [ -e "$folder/terse.gguf" ] || "$build/bin/terse" calibrate -m "$1" -f "$learn" --kv terse-2 -o "$folder/terse.gguf"
    for b in $rates 1.5; do ln -sf terse.gguf "$folder/terse-$b.gguf"; done
}

# MODEL TEXT FOLDER METHODS PARTS [OPTION ...]: each job takes every jobs-th method.
measure_on() {
    local of=$1 on=$2 folder=$3 methods=$4 parts=$5 job share pids=()
    shift 5
    for ((job = 0; job < jobs; job++)); do
        share=$(tr , '\n' <<<"$methods" | awk "NR % $jobs == $job" | paste -sd,)
        [ -n "$share" ] || continue
        # shellcheck disable=SC2086
        "$build/bin/fidelity" -m "$of" -f "$on" -w "$folder" --resume --words "$here/fidelity_words.json" -t $((($(nproc) + jobs - 1) / jobs)) \
            --methods "$share" --parts "$parts" "$@" ${MEASURE:-} &
        pids+=($!)
    done
    for job in "${pids[@]}"; do wait "$job"; done
}

# METHODS PARTS [OPTION ...]
measure() { measure_on "$model" "$text" "$work" "$@"; }

step_main() {
    local b methods=(f16 q8_0 q4_0 kivi-4 kivi-2)
    for b in $bits; do methods+=("cq-$b" "antkv-$b:anchors=0%" "antkv-$b"); done
    for b in 2 1; do methods+=("commvq-$b" "commvq-$b:anchors=1%"); done
    for b in $rates; do methods+=("terse-$b"); done
    measure "$(join "${methods[@]}" million-4 million-3 million-2)" default,paper
    # shellcheck disable=SC2086
    measure "$(join $told)" needles --tasks 4,4,1,0
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
    for b in $gained; do methods+=("antkv-$b:anchors=0%:codebook=antkv-$b-none"); done
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

step_commvq() {
    [ -e "$work/commvq_tables.json" ] || "$build/bin/commvq_tables" -m "$model" -f "$learn" --test "$text" -w "$work"
    if [ ! -e "$work/commvq_attention.txt" ]; then
        "$build/bin/bench_commvq" | tee "$work/commvq_attention.new"
        mv "$work/commvq_attention.new" "$work/commvq_attention.txt"
    fi
    # shellcheck disable=SC2086
    measure "$(join f16 $matched)" needles --tasks 10,10,2,1
}

# SnapKV's budget is a number of tokens, so 7.5 % is another run for each prompt length.
step_choose() {
    # shellcheck disable=SC2086
    measure "$(join f16 $selected $ablations $indexed $whole snapkv-307)" default
    # shellcheck disable=SC2086
    measure "$(join f16 $selected $ablations $indexed)" needles --tasks 3,3,0,0
    # shellcheck disable=SC2086
    measure "$(join f16 $selected)" needles --tasks 0,0,3,1
    measure snapkv-307 needles --tasks 3,0,0,0
    measure snapkv-614 needles --tasks 0,3,0,0
    measure snapkv-1228 needles --tasks 0,0,3,0
    measure snapkv-2400 needles --tasks 0,0,0,1
    "$build/bin/recall" -m "$model" -f "$text" -w "$work"
}

# In a folder of its own, since window and scored part differ.
step_deep() {
    # shellcheck disable=SC2086
    measure_on "$model" "$text" "$work/deep" "$(join f16 $selected snapkv-2304 selfindex-2:read=100%)" default -c 32768 --scored 2048
}

# Texts to learn from and to measure on. Source code is the project's own, alternate files for each.
domain_texts() {
    local d=$work/domains
    mkdir -p "$d/codebooks"
    [ ! -e "$d/list.test" ] || return 0
    cp "$learn" "$d/prose.learn"
    cp "$text" "$d/prose.test"
    find "$project/src" -name '*.c' | LC_ALL=C sort | awk 'NR % 2' | xargs cat >"$d/code.learn"
    find "$project/src" -name '*.c' | LC_ALL=C sort | awk 'NR % 2 == 0' | xargs cat >"$d/code.test"
    python3 "$here/fidelity_list.py" 1 20000 >"$d/list.learn"
    python3 "$here/fidelity_list.py" 2 2000 >"$d/list.test"
}

step_domains() {
    local on from m methods=() d=$work/domains
    domain_texts
    for from in $domains; do
        # shellcheck disable=SC2086
        for m in commvq-1 antkv-1; do
            "$build/bin/codebooks" -m "$model" -f "$d/$from.learn" -w "$d" --chunks 32 --books "$m-$from=$m" ${LEARN:-}
            methods+=("$m:codebook=$m-$from")
        done
    done
    for on in $domains; do
        mkdir -p "$d/on-$on"
        ln -sfn ../codebooks "$d/on-$on/codebooks"
        measure_on "$model" "$d/$on.test" "$d/on-$on" "$(join "${methods[@]}")" default -c 4096 --chunks 2
    done
}

# For the model with sinks only terse learns a profile: the other learned methods would need an hour.
step_terse() {
    local b methods=() others='q8_0 q4_0 kivi-4 kivi-2' learned='antkv-4 antkv-2 antkv-1 million-4 commvq-2 commvq-1'
    for b in $rates 1.5; do methods+=("terse-$b"); done
    for b in $rates; do methods+=("terse-$b:codebook=none"); done
    profile "$model" "$work"
    # shellcheck disable=SC2086
    measure "$(join f16 "${methods[@]}" $others $learned)" default
    measure "$(join f16 "${methods[@]}" q8_0 q4_0)" paper,needles
    [ -n "$sinks" ] || return 0
    profile "$sinks" "$work/sinks"
    # shellcheck disable=SC2086
    measure_on "$sinks" "$text" "$work/sinks" "$(join f16 "${methods[@]}" $others)" default
}

# Python with matplotlib: Debian's own, where another comes first.
plotting() {
    if python3 -c 'import matplotlib' 2>/dev/null; then python3 "$@"; else /usr/bin/python3 "$@"; fi
}

step_report() {
    plotting "$reports/fidelity_report.py" "$work" "$docs/fidelity.md"
    plotting "$reports/plot_fidelity.py" "$work" "$docs/fidelity.svg" "$docs/fidelity.png"
    [ ! -e "$work/commvq_tables.json" ] || plotting "$reports/plot_commvq.py" "$work" "$docs/commvq-rounds.svg" "$docs/commvq-rounds.png"
}

step_terse_report() {
    local folders=("$work")
    [ ! -e "$work/sinks/setup.json" ] || folders+=("$work/sinks")
    plotting "$reports/terse_report.py" "$docs/terse.md" "${folders[@]}"
    plotting "$reports/plot_fidelity.py" "$work" "$docs/terse.svg" "$docs/terse.png"
}

# Notes the commit that the programs were built of; a folder has results of one, with nothing changed.
record_commit() {
    local commit
    commit=$("$build/bin/terse" --version | sed -n 's/^commit //p')
    case $commit in
    '' | unknown | *-dirty) echo "fidelity.sh: the programs were built of ${commit:-no commit that they know}: build them of a commit, with nothing changed" >&2 && exit 1 ;;
    esac
    if [ -e "$work/commit.txt" ] && [ "$(cat "$work/commit.txt")" != "$commit" ]; then
        echo "fidelity.sh: $work has results of commit $(cat "$work/commit.txt"), and the programs are of $commit: give another folder with -w" >&2
        exit 1
    fi
    echo "$commit" >"$work/commit.txt"
}

for step in "$@"; do
    declare -F "step_$step" >/dev/null || usage
    case $step in
    report | terse_report) ;;
    *) record_commit ;;
    esac
    "step_$step"
done
