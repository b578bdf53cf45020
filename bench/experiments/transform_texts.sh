#!/usr/bin/env bash
# Measures terse-N beside other methods on texts that are not the usual prose, at greater lengths, and by what a cache writes itself:
#
#     transform_texts.sh TERSE MODEL.gguf PROSE.txt [CONTEXT...] [-- OPTIONS]
#
# Texts are made of PROSE and of this project's C sources: the sources alone, both by turns of 6,000 characters, and 10,000 characters of prose before 22,000 of C,
# whose sequences are fitted to prose and go on with something else. 2 windows of 8,192 tokens each; of PROSE also one window of each CONTEXT. Then 10 windows of
# 4,096 tokens of PROSE, behind which the cache writes 256 tokens greedily (terse perplexity --free-running). OPTIONS are for terse perplexity, as --device cuda.
set -euo pipefail
terse=$1 model=$2 prose=$3
shift 3
contexts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do contexts+=("$1") && shift; done
[ $# -eq 0 ] || shift
methods=(terse-4 terse-3 terse-2 kivi-4 kivi-2 q4_0)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")/../.."

cat src/kv/*.c src/engine/*.c src/format/*.c src/backend/cpu/kv/*.c src/text/*.c >"$work/c"
piece() { tail -c +$(($2 + 1)) "$1" | head -c "$3" || true; }
for i in $(seq 0 15); do piece "$prose" $((i * 6000)) 6000 && piece "$work/c" $((i * 6000)) 6000; done >"$work/by turns"
for i in $(seq 0 5); do piece "$prose" $((i * 10000)) 10000 && piece "$work/c" $((i * 22000)) 22000; done >"$work/prose, then C"

perplexity() { "$terse" perplexity -m "$model" "$@"; }
codebook() { case $1 in terse*) echo --codebook none ;; esac }

# Prints a row: the text, its context, and the divergence of each method.
measure() {
    local name=$1 file=$2 context=$3 chunks=$4 method
    shift 4
    perplexity -f "$file" -c "$context" --chunks "$chunks" --kv f16 --kl-divergence-base "$work/base" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
    printf '| %s, %s tokens |' "$name" "$context"
    for method in "${methods[@]}"; do
        # shellcheck disable=SC2046
        perplexity --kl-divergence-base "$work/base" --kl-divergence -c "$context" --kv "$method" $(codebook "$method") "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
        printf ' %s |' "$(sed -n 's/^KLD mean = \([0-9.]*\).*/\1/p' "$work/log")"
    done
    echo
}

echo "| text |$(printf ' %s |' "${methods[@]}")" && echo "| --- |$(printf ' ---: |%.0s' "${methods[@]}")"
measure "C sources" "$work/c" 8192 2 "$@"
measure "prose and C by turns" "$work/by turns" 8192 2 "$@"
measure "prose, then C" "$work/prose, then C" 8192 2 "$@"
for context in "${contexts[@]}"; do measure "prose" "$prose" "$context" 1 "$@"; done

echo && echo "| method | same greedy tokens of 256, % | first of them |" && echo "| --- | ---: | ---: |"
for method in q8_0 "${methods[@]}"; do
    # shellcheck disable=SC2046
    perplexity -f "$prose" -c 8192 --chunks 10 --free-running 256 --kv "$method" $(codebook "$method") "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
    echo "| $method | $(sed -n 's/^same greedy tokens = \([0-9.]* +\/- [0-9.]*\).*/\1/p' "$work/log") | $(sed -n 's/^same greedy prefix = \([0-9.]* +\/- [0-9.]*\).*/\1/p' "$work/log") |"
done
