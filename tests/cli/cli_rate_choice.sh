#!/usr/bin/env bash
# --kv auto: terse calibrate measures what rates cost, and the other commands choose by that, by bytes, or by a saved state.
. "$(dirname "$0")/../support/cli.sh"
model=tests/fixtures/models/llama.gguf # 2 layers, context 512
for i in 1 2 3 4; do cat "$text"; done >"$work/text"

# says PATTERN ARGUMENTS: terse run works, and its first line on stderr has the pattern.
says() {
    local pattern=$1
    shift
    works run -m $model -p 'some text' -n 1 "$@"
    head -1 "$work/err" | grep -q -- "$pattern" || fail "run $*: no \"$pattern\" in: $(cat "$work/err")"
}

# run_bytes METHOD: the bytes of its cache with a full context.
run_bytes() {
    "$terse" perplexity -m $model -f "$work/text" -c 512 --chunks 1 --kv "$1" 2>/dev/null | sed -n 's/^KV cache = \([0-9]*\) bytes.*/\1/p'
}

refuses '--kv auto:x: give auto, auto:0.02' run -m $model -p x --kv auto:x
refuses '--kv auto:: give auto' run -m $model -p x --kv auto:
refuses '--kv auto:-1: give auto' run -m $model -p x --kv auto:-1
refuses "unknown KV method 'automatic'" run -m $model -p x --kv automatic
refuses '--kv auto chooses for keys and values: omit -ctk' run -m $model -p x --kv auto -ctk q8_0

# Nothing is measured: terse-4, and a line only where a choice was asked for.
says '^prompt .*(terse-4)$'
says '^KV cache terse-4: whether fewer bits do as well was not measured on this model (terse calibrate .* does)$' --kv auto
[ "$(wc -l <"$work/err")" -eq 2 ] || fail "not one line more: $(cat "$work/err")"

# Under a budget: what pages may be lowered to, and what was.
refuses 'min= says to what a budget may lower pages: give a budget' run -m $model -p x --kv auto:min=terse-2
refuses '--kv auto:min=terse-x: give auto' run -m $model -p x --kv auto:min=terse-x --kv-budget 1G
says '^KV cache terse-4: .*; lowered to terse-2 at least where --kv-budget has no room$' --kv auto:min=terse-2 --kv-budget 1G
head -c 6000 "$work/text" >"$work/long"
works run -f "$work/long" -n 1 --kv auto:min=terse-2 --kv-budget 6M -c 4096
grep -q '(terse-4; .* tokens at terse-[34], .* at terse-[23])$' "$work/err" || fail "nothing is lowered: $(cat "$work/err")"
works run -f "$work/long" -n 1 --kv auto:min=terse-2 --kv-budget 64M -c 4096
grep -q '(terse-4; [0-9]* tokens at terse-4)$' "$work/err" || fail "lowered for nothing: $(cat "$work/err")"
refuses 'do not fit the budget' run -f "$work/long" -n 1 --kv terse-4 --kv-budget 6M -c 4096

# Measured, on text that the profile was not learned from, and kept in it.
works calibrate -m $model -f "$work/text" -c 100 --chunks 2 --kv terse-4
grep -q '^what rates cost on this model, over 128 tokens of text that it was not learned from' "$work/out" || fail "$(cat "$work/out")"
cost() { sed -n "s/^  terse-$1  *\([0-9.e-]*\) .*/\1/p" "$work/out"; }
most=$(cost 4) least=$(cost 1)
[ -n "$most" ] && [ -n "$(cost 3)" ] && [ -n "$(cost 2)" ] && [ -n "$(cost 1.5)" ] && [ -n "$least" ] || fail "a rate is missing: $(cat "$work/out")"
python3 -c 'import sys; sys.exit(not 0 < float(sys.argv[1]) < float(sys.argv[2]))' "$most" "$least" || fail "one bit costs no more than four: $(cat "$work/out")"
works inspect "$work"/cache/terse/terse-*.gguf
grep -q '^  terse-1.5 ' "$work/out" || fail "inspect does not show costs: $(cat "$work/out")"

says "^KV cache terse-1: its measured KL divergence from f16 on this model is .*, and at most 10 is allowed" --kv auto:10
says "^KV cache terse-8: the measured KL divergence of terse-4 .* more than the 1e-06 allowed" --kv auto:1e-6
says '^KV cache terse-4: whether fewer bits do as well was not measured' --kv auto --codebook none

# By bytes: from the bytes of two rates a rate between them.
few=$(run_bytes terse-1) many=$(run_bytes terse-8)
says '^KV cache terse-8: the most bits with which 512 tokens take no more than ' --kv "auto:$many"
says '^KV cache terse-[2-7][0-9.]*: .*; measured KL divergence .*' --kv "auto:$(((few + many) / 2))"
says '^KV cache terse-1[.0-9]*: ' --kv "auto:$few"
refuses '512 tokens take [0-9.]* MiB with terse-1: allow as much, or lower -c' run -m $model -p x --kv "auto:$((few / 2))"

works perplexity -m $model -f "$text" -c 256 --chunks 1 --kv auto:10
grep -q '(terse-1)' "$work/out" || fail "perplexity: $(cat "$work/out")"

# A text without room for it says so, and a profile is kept all the same.
works calibrate -m $model -f "$text" -c 200 --kv terse-4 -o "$work/short.gguf"
grep -q '^what rates cost is not measured: the text has no 512 tokens in a row' "$work/err" || fail "$(cat "$work/err")"
[ -s "$work/short.gguf" ] || fail "no profile"

# A state goes on as it was saved.
works run -m $model -p 'some text' -n 1 --kv terse-3 --save-state "$work/state"
works run -m $model -p 'more' -n 1 --state "$work/state"
grep -q '^KV cache terse-3: that of the saved state$' "$work/err" || fail "$(cat "$work/err")"
works run -m $model -p 'some text' -n 1 --kv kivi-2 --save-state "$work/state"
works run -m $model -p 'more' -n 1 --state "$work/state"
grep -q '(kivi-2)$' "$work/err" || fail "$(cat "$work/err")"
refuses 'was saved with another cache' run -m $model -p 'more' -n 1 --state "$work/state" --kv terse-3
refuses 'No such file' run -m $model -p 'more' -n 1 --state "$work/none"

# --auto-calibrate measures what was not measured.
rm -r "$work/cache"
works run -m $model -p 'some text' -n 1 --kv auto --auto-calibrate
grep -q '^KV cache terse-[0-9.]*: .*measured KL divergence' "$work/err" || fail "$(cat "$work/err")"
echo ok
