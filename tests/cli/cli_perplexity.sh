#!/usr/bin/env bash
# terse perplexity: the figure that llama.cpp's tool gives for the same windows, and what other caches make of it.
. "$(dirname "$0")/../support/cli.sh"

# The excerpt begins as WikiText's test split does: llama.cpp's perplexity of its first 4 windows of 512 is 63.5648 +/- 6.05 with
# the F16 weights of the model that ships as Q8_0; the weights' own difference is about 0.2 %.
works perplexity -f "$text" -c 512 --chunks 4
ppl=$(number_after '^PPL = ' "$work/out")
near "$ppl" 63.5648 0.005 || fail "PPL = $ppl, llama.cpp has 63.5648"
near "$(number_after '^PPL = [0-9.]* [+]/- ' "$work/out")" 6.05 0.01 || fail "error estimate: $(cat "$work/out")"
[ "$(grep -c '^\[[1-4]\] [0-9.]*$' "$work/out")" -eq 4 ] || fail "no running values: $(cat "$work/out")"
[ "$(sed -n 's/^\[4\] //p' "$work/out")" = "$ppl" ] || fail "the last running value is not the result"
grep -q '^KV cache = [0-9]* bytes resident after 512 tokens, 16.0[0-9]* bits per value (f16), steps of 64 tokens$' "$work/out" ||
    fail "no line on the cache: $(cat "$work/out")"
near "$(number_after '^KV cache = ' "$work/out")" $((512 * 12288)) 0.001 || fail "the cache's bytes: $(cat "$work/out")"
[ ! -s "$work/err" ] || fail "short work on stderr: $(cat "$work/err")"

# An f16 cache gives the same perplexity however the second half is cut into steps.
works perplexity -f "$text" -c 256 --chunks 1
ppl=$(number_after '^PPL = ' "$work/out")
works perplexity -f "$text" -c 256 --chunks 1 --ubatch 7
near "$(number_after '^PPL = ' "$work/out")" "$ppl" 0.0005 || fail "steps of 7: $(cat "$work/out"), of 64: $ppl"
grep -q '(f16), steps of 7 tokens$' "$work/out" || fail "the steps are not named: $(cat "$work/out")"
works perplexity -f "$text" -c 256 --chunks 1 --paper
near "$(number_after '^PPL = ' "$work/out")" "$ppl" 0.002 || fail "--paper on f16: $(cat "$work/out"), not $ppl"

# A coarser cache costs something, but not much, and it is smaller.
works perplexity -f "$text" -c 512 --chunks 1 --paper
ppl=$(number_after '^PPL = ' "$work/out")
works perplexity -f "$text" -c 512 --chunks 1 --kv q4_0 --kv-tail-tokens 0 --paper
[ "$(number_after '^PPL = ' "$work/out")" != "$ppl" ] || fail "q4_0 costs nothing: $(cat "$work/out")"
near "$(number_after '^PPL = ' "$work/out")" "$ppl" 0.05 || fail "q4_0: $(cat "$work/out"), f16: $ppl"
near "$(number_after 'tokens, ' "$work/out")" 4.625 0.01 || fail "q4_0 is not 4.5 bits and 4 of 512 tokens at 16: $(cat "$work/out")"
grep -q '(q4_0)$' "$work/out" || fail "the method is not named: $(cat "$work/out")"

# More windows than there are: said, and the rest scored. An odd window.
head -c 2500 "$text" >"$work/short" # some 850 tokens
works perplexity -f "$work/short" -c 600 --chunks 5
grep -q 'the text has 1 windows of 600 tokens only' "$work/err" || fail "nothing about --chunks: $(cat "$work/err")"
works perplexity -f "$text" -c 65 --chunks 2
