#!/usr/bin/env bash
# terse compare: its figures are those of terse perplexity --kl-divergence, its interval holds their difference, and it says what
# follows from that.
. "$(dirname "$0")/../support/cli.sh"
windows=(-f "$text" -c 456 --chunks 9) # 227 positions each, so that blocks of 256 reach from one into the next

# The number before the extended regular expression's `to` and behind it: interval PATTERN
interval() { echo "$(number_after "$1.* interval " "$work/out") $(number_after "$1.* to " "$work/out")"; }
# inside VALUE LOW HIGH
inside() { awk -v v="$1" -v l="$2" -v h="$3" 'BEGIN { exit !(l < v && v < h) }'; }

works compare q4_0 kivi-2 "${windows[@]}"
cp "$work/out" "$work/compared"
[ ! -s "$work/err" ] || fail "something on stderr: $(cat "$work/err")"
[ "$(grep -c '^\[[1-9]\] KLD(A) [0-9.]*  KLD(B) [0-9.]*$' "$work/out")" -eq 9 ] || fail "no running values: $(cat "$work/out")"
a=$(number_after '^KLD.A. = ' "$work/out") b=$(number_after '^KLD.B. = ' "$work/out")
ppl=$(number_after '^PPL.f16. = ' "$work/out")
difference=$(number_after '^KLD.B. - KLD.A. = ' "$work/out")
ratio=$(number_after '^PPL.B. / PPL.A. = ' "$work/out")
ratio_a=$(number_after '^PPL.A. / PPL.f16. = ' "$work/out") ratio_b=$(number_after '^PPL.B. / PPL.f16. = ' "$work/out")
near "$difference" "$(awk -v a="$a" -v b="$b" 'BEGIN { print b - a }')" 1e-4 || fail "B - A: $(cat "$work/out")"
near "$ratio" "$(awk -v a="$ratio_a" -v b="$ratio_b" 'BEGIN { print b / a }')" 1e-5 || fail "ratio: $(cat "$work/out")"
# Word splitting is meant.
inside "$difference" $(interval '^KLD.B. - KLD.A. = ') || fail "the difference lies outside of its interval: $(cat "$work/out")"
inside "$ratio" $(interval '^PPL.B. / PPL.A. = ') || fail "the ratio lies outside of its interval: $(cat "$work/out")"
grep -q '^2043 positions, drawn 10000 times in blocks of 256; steps of 64 tokens$' "$work/out" || fail "positions: $(cat "$work/out")"
grep -q '^q4_0 is better than kivi-2 on this text: ' "$work/out" || fail "no verdict: $(cat "$work/out")"

# The same by terse perplexity: a base file holds what the f16 cache beside the others tells.
works perplexity "${windows[@]}" --kl-divergence-base "$work/base"
near "$(number_after '^PPL = ' "$work/out")" "$ppl" 1e-9 || fail "PPL(f16) is not that of terse perplexity: $(cat "$work/out"), $ppl"
check_beside() {
    works perplexity --kl-divergence-base "$work/base" --kl-divergence --kv "$1"
    [ "$(number_after '^KLD mean = ' "$work/out")" = "$2" ] || fail "$1: KLD $2, but: $(cat "$work/out")"
    [ "$(number_after '^PPL / PPL.base. = ' "$work/out")" = "$3" ] || fail "$1: PPL ratio $3, but: $(cat "$work/out")"
    [ "$(number_after 'tokens, ' "$work/out")" = "$(number_after " = $1, " "$work/compared")" ] || fail "$1: bits: $(cat "$work/out")"
}
check_beside q4_0 "$a" "$ratio_a"
check_beside kivi-2 "$b" "$ratio_b"

# Where both caches hold the same there is nothing to decide.
works compare q8_0 q4_0 "${windows[@]}" --kv-tail-tokens 456
grep -q '^KLD(B) - KLD(A) = 0.00000000, 95 % interval 0.00000000 to 0.00000000$' "$work/out" || fail "all exact: $(cat "$work/out")"
grep -q '^PPL(B) / PPL(A) = 1.000000, 95 % interval 1.000000 to 1.000000$' "$work/out" || fail "all exact: $(cat "$work/out")"
grep -q '^The text does not decide between q8_0 and q4_0: ' "$work/out" || fail "no verdict: $(cat "$work/out")"

# The other way round; a method by its cost, --codebook none for the one of the two that it is for, and an option of both caches.
works compare kivi-2 auto:0.05 "${windows[@]}" --codebook none --kv-tail-tokens 32
grep -q '^KV cache terse-4: ' "$work/err" || fail "what auto chose is not said: $(cat "$work/err")"
grep -q '^B = terse-4, [0-9.]* bits per value$' "$work/out" || fail "auto: $(cat "$work/out")"
grep -q '^terse-4 is better than kivi-2 on this text: ' "$work/out" || fail "turned round: $(cat "$work/out")"
grep -q '^KLD(B) - KLD(A) = -0[0-9.]*, 95 % interval -0[0-9.]* to -0' "$work/out" || fail "turned round: $(cat "$work/out")"

refuses 'it takes two methods' compare
refuses 'it takes two methods' compare q4_0 -f "$text"
refuses 'unexpected argument "f16"' compare q4_0 q8_0 f16 -f "$text"
refuses 'both methods are q4_0: name two' compare q4_0 q4_0 -f "$text"
refuses 'both methods are terse-4: name two' compare auto terse-4 -f "$text" --codebook none
refuses 'no text: give -f FILE' compare q4_0 q8_0
refuses 'No such file' compare q4_0 q8_0 -f "$work/missing"
refuses "unknown KV method 'f17'" compare q4_0 f17 -f "$text"
refuses "unknown KV method 'f17'" compare f17 q4_0 -f "$text"
refuses '--kv auto:x: give auto' compare q4_0 auto:x -f "$text"
refuses 'at least 8 tokens' compare q4_0 q8_0 -f "$text" -c 7
refuses 'too few for a window of 30000' compare q4_0 q8_0 -f "$text" -c 30000
refuses '2 windows of 512 tokens have 510 positions to score, and an interval needs more than 1792' compare q4_0 q8_0 -f "$text" --chunks 2
refuses '39 windows of 8 tokens have 117 positions' compare q4_0 q8_0 -f <(head -c 900 "$text") -c 8 --chunks 100
refuses '--codebook is for methods that learn' compare q4_0 q8_0 -f "$text" --codebook "$work/missing"
refuses 'do not fit' compare q4_0 q8_0 -f "$text" --kv-budget 1M
interrupts compare q4_0 q8_0 -f data/demo.txt -c 64
