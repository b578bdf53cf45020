#!/usr/bin/env bash
# terse perplexity --free-running: an f16 cache is no distance from f16, others are, in the order of their bits, and the same texts come out each time.
. "$(dirname "$0")/../support/cli.sh"
free=(perplexity -f "$text" --kv-tail-tokens 0)

# figure NAME: of the last command.
figure() { number_after "^$1 = " "$work/out"; }

# above A B: A > B
above() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b) }'; }

# Both caches draw by the same random numbers, so that f16 writes f16's text.
works "${free[@]}" -c 256 --chunks 2 --free-running 100 --kv f16
[ "$(figure 'free-running KLD')" = 0.00000000 ] || fail "f16 differs from f16: $(cat "$work/out")"
[ "$(figure "KLD on f16's text")" = 0.00000000 ] || fail "f16 differs from f16 on its own text: $(cat "$work/out")"
grep -q "^PPL(written) / PPL(f16's text) = 1.000000 +/- 0.000000$" "$work/out" || fail "f16 writes another text than f16: $(cat "$work/out")"
grep -q '^same greedy tokens = 100.000 +/- 0.000 % of 100$' "$work/out" || fail "greedy tokens: $(cat "$work/out")"
grep -q '^same greedy prefix = 100.00 +/- 0.00 of 100 tokens$' "$work/out" || fail "greedy prefix: $(cat "$work/out")"
grep -q '^KV cache = [0-9]* bytes resident after 227 tokens, .* (f16), steps of 1 token$' "$work/out" || fail "the cache: $(cat "$work/out")"
[ "$(grep -c '^\[[12]\] free-running KLD 0.000000 ' "$work/out")" -eq 2 ] || fail "no lines on the windows: $(cat "$work/out")"
# A text that f16 writes is as likely as f16 expects its own to be.
expected=$(number_after '^PPL.written. / expected = ' "$work/out")
near "$expected" 1 0.3 || fail "f16 is surprised by its own text: $(cat "$work/out")"

# Codes differ, fewer bits more; with q8_0 the texts remain f16's.
works "${free[@]}" -c 512 --chunks 1 --free-running 64 --kv q8_0
kld=$(figure 'free-running KLD')
above "$kld" 0 && above 0.001 "$kld" || fail "q8_0: $(cat "$work/out")"
near "$(number_after "^PPL.written. / PPL.f16's text. = " "$work/out")" 1 0.001 || fail "q8_0 writes another text than f16: $(cat "$work/out")"
near "$(figure "KLD on f16's text")" "$kld" 0.05 || fail "q8_0 on the same text: $(cat "$work/out")"
grep -q '^free-running KLD = [0-9.]*$' "$work/out" || fail "an error of one window: $(cat "$work/out")"
works "${free[@]}" -c 512 --chunks 1 --free-running 64 --kv terse-1
cp "$work/out" "$work/first"
above "$(figure 'free-running KLD')" "$(awk -v a="$kld" 'BEGIN { print 20 * a }')" || fail "terse-1: $(cat "$work/out"), q8_0 has $kld"
above 0.2 "$(figure 'free-running KLD')" || fail "terse-1: $(cat "$work/out")"
above "$(figure "KLD on f16's text")" 0.0005 || fail "terse-1 on f16's text: $(cat "$work/out")"
above 100 "$(figure 'same greedy tokens')" || fail "terse-1 writes what f16 does: $(cat "$work/out")"
works "${free[@]}" -c 512 --chunks 1 --free-running 64 --kv terse-1
cmp "$work/out" "$work/first" || fail 'another text the second time'

# Layers that slide, and tokens that are dropped. At most 256 greedy tokens are compared; a single token may be written.
works "${free[@]}" -m tests/fixtures/models/gemma2.gguf -c 600 --allow-longer-context --chunks 1 --free-running 300 --kv f16
grep -q '^same greedy prefix = 256.00 of 256 tokens$' "$work/out" || fail "gemma2: $(cat "$work/out")"
grep -q ' resident after 599 tokens' "$work/out" || fail "gemma2 has not read 300 tokens and written 300: $(cat "$work/out")"
works perplexity -f "$text" -m tests/fixtures/models/gemma2.gguf -c 256 --chunks 1 --free-running 128 --kv streaming-64
above "$(figure 'free-running KLD')" 0.001 || fail "streaming-64 loses nothing: $(cat "$work/out")"
works "${free[@]}" -c 8 --chunks 1 --free-running 1 --kv q8_0
[ "$(figure 'free-running KLD')" = 0.00000000 ] || fail "the first token follows an exact prompt: $(cat "$work/out")"

# What makes no sense, and what does not fit.
refuses 'omit --kl-divergence and' "${free[@]}" --free-running 8 --kl-divergence-base "$work/base"
refuses 'omit --kl-divergence and' perplexity --free-running 8 --kl-divergence-base "$work/base" --kl-divergence
refuses 'omit --paper' "${free[@]}" --free-running 8 --paper
refuses 'omit --ubatch' "${free[@]}" --free-running 8 --ubatch 32
refuses 'behind half of 512 tokens there is room for 256: use a smaller number, or -c 1024' "${free[@]}" --free-running 512
refuses 'room for 33: .* or -c 68' "${free[@]}" -c 65 --free-running 34
refuses '--free-running takes a whole number from 0' "${free[@]}" --free-running -1
refuses "longer than the 32768 the model was trained for" perplexity -f data/wiki.valid.raw -c 40000 --free-running 8
refuses 'two caches, of three sequences each: 5.3 MiB, and 5.3 MiB of f16 beside it, are more than --kv-budget allows' \
    "${free[@]}" -c 512 --free-running 64 --kv f16 --kv-budget 10M
works "${free[@]}" -c 512 --chunks 1 --free-running 64 --kv f16 --kv-budget 12M
[ "$(echo "$work"/base*)" = "$work/base*" ] || fail "a base file was written: $(ls "$work")"
interrupts perplexity -f data/demo.txt -c 64 --free-running 16
interrupts perplexity -f data/wiki.valid.raw -c 2048 --free-running 1024 --kv terse-2
