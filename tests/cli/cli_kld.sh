#!/usr/bin/env bash
# The KL divergence's base file: written, checked byte by byte against the run that wrote it, read back, and refused when it is not
# whole or belongs to something else.
. "$(dirname "$0")/../support/cli.sh"
base=$work/base.kld

works perplexity -f "$text" -c 64 --chunks 2 --kl-divergence-base "$base"
ppl=$(number_after '^PPL = ' "$work/out")
[ "$(echo "$work"/*.tmp)" = "$work/*.tmp" ] || fail "a temporary file was left: $(ls "$work")"

# 20 bytes of header, 2 x 64 tokens, 2 x 31 rows of 8192 codes and 4 words.
[ "$(wc -c <"$base")" -eq $((20 + 4 * 128 + 2 * 31 * 2 * (8192 + 4))) ] || fail "the base has $(wc -c <"$base") bytes"
[ "$(head -c 8 "$base")" = _logits_ ] || fail "the base begins with $(head -c 8 "$base")"
[ "$(od -An -tu4 -j 8 -N 12 "$base" | tr -s ' ')" = " 64 8192 2" ] || fail "header: $(od -An -tu4 -j 8 -N 12 "$base")"

# The rows are checked here: each is a distribution, and together they give the perplexity that was printed.
{
    od -An -v -w4 -td4 -j 20 -N 512 "$base"
    echo rows
    for row in $(seq 0 61); do
        at=$((532 + row * 2 * 8196))
        od -An -v -w8 -tf4 -j $at -N 8 "$base"
        od -An -v -w16384 -tu2 -j $((at + 8)) -N 16384 "$base"
    done
} | awk -v ppl="$ppl" '
    $1 == "rows" { reading = 1; next }
    !reading { token[n++] = $1; next }
    NF == 2 { scale = $1; least = $2; next }
    {
        sum = 0
        for (i = 1; i <= NF; i++) sum += exp(scale * $i + least)
        if (sum < 0.999 || sum > 1.001) { print "row " row " sums to " sum; bad = 1; exit }
        chunk = int(row / 31); position = 32 + row % 31
        nll -= scale * $(token[chunk * 64 + position + 1] + 1) + least
        row++
    }
    END {
        if (bad) exit 1
        found = exp(nll / row)
        if (row != 62 || found / ppl > 1.001 || found / ppl < 0.999) { print row " rows give " found ", not " ppl; exit 1 }
    }' || fail "the base does not hold the run's probabilities"

# The same run against its own base: only the rounding of 16-bit codes is left.
works perplexity --kl-divergence-base "$base" --kl-divergence
if grep -q "KLD -0.000000 " "$work/out"; then fail "a sign before nothing: $(cat "$work/out")"; fi
awk -v kld="$(number_after '^KLD mean = ' "$work/out")" 'BEGIN { exit !(kld < 1e-5 && kld > -1e-5) }' || fail "KLD: $(cat "$work/out")"
grep -q '^same top-1 = 100.000 ' "$work/out" || fail "same top-1: $(cat "$work/out")"
near "$(number_after '^PPL = ' "$work/out")" "$ppl" 1e-5 || fail "PPL: $(cat "$work/out")"
near "$(number_after '^PPL / PPL.base. = ' "$work/out")" 1 1e-4 || fail "ratio: $(cat "$work/out")"
for name in median '90 %' '95 %' '99 %' '99.9 %' max; do
    grep -q "^KLD $name = [-0-9.]*$" "$work/out" || fail "no $name: $(cat "$work/out")"
done

# With the text given beside the base, and a coarser cache, the divergence is above zero and the quantiles are in order.
works perplexity -f "$text" --kl-divergence-base "$base" --kl-divergence --kv q4_0 --kv-tail-tokens 0 --paper
awk -F ' = ' '/^KLD mean/ { split($2, f, " "); if (f[1] + 0 <= 1e-4 || f[1] + 0 > 1) exit 1 }
    /^KLD (median|[0-9]|max)/ { if ($2 + 0 < last) exit 1; last = $2 + 0 }' "$work/out" || fail "q4_0: $(cat "$work/out")"
works perplexity --kl-divergence-base "$base" --kl-divergence --chunks 1

# Means of blocks are those of the whole, each position in one of them.
works perplexity --kl-divergence-base "$base" --kl-divergence --kv q4_0 --kv-tail-tokens 0 --paper --block 20
awk -v mean="$(number_after '^KLD mean = ' "$work/out")" -v ppl="$(number_after '^PPL = ' "$work/out")" -F '[ :=,]+' '
    /^block of / { n += $3; nll += $3 * $5; kld += $3 * $7; blocks++ }
    END { if (blocks != 4 || n != 62 || (kld / n - mean) ^ 2 > 1e-14 || exp(nll / n) / ppl > 1.0001 || exp(nll / n) / ppl < 0.9999) { print blocks, n, kld / n, exp(nll / n); exit 1 } }' \
    "$work/out" || fail "blocks: $(cat "$work/out")"
refuses 'add --kl-divergence' perplexity -f "$text" --block 20

# Bases that are not whole, not bases, or not of this run.
compare=(perplexity --kl-divergence --kl-divergence-base)
for bytes in 0 7 19 20 300 600 $(($(wc -c <"$base") - 1)); do
    head -c "$bytes" "$base" >"$work/cut"
    refuses 'too short\|truncated' "${compare[@]}" "$work/cut"
done
{ cat "$base"; echo; } >"$work/long"
refuses 'longer than it should be' "${compare[@]}" "$work/long"
refuses 'does not begin with' "${compare[@]}" "$text"
refuses 'No such file' "${compare[@]}" "$work/missing"
{ head -c 12 "$base"; printf '\xff\xff\xff\x7f\xff\xff\xff\x7f'; tail -c +21 "$base"; } >"$work/huge"
refuses 'truncated' "${compare[@]}" "$work/huge"
{ head -c 8 "$base"; printf '\0\0\0\0'; tail -c +13 "$base"; } >"$work/zero"
refuses 'damaged' "${compare[@]}" "$work/zero"
{ head -c 40 "$base"; printf '\0\0\0\x80'; tail -c +45 "$base"; } >"$work/token"
refuses 'damaged: token 5 is -2147483648' "${compare[@]}" "$work/token"
{ head -c 532 "$base"; printf '\0\0\xc0\x7f'; tail -c +537 "$base"; } >"$work/nan"
refuses 'damaged before byte' "${compare[@]}" "$work/nan"
{ head -c 12 "$base"; printf '\xff\x1f\0\0'; tail -c +17 "$base"; } >"$work/vocabulary"
refuses 'vocabulary of 8191 tokens and the model has 8192' "${compare[@]}" "$work/vocabulary"
refuses 'windows of 64 tokens, not 128' "${compare[@]}" "$base" -c 128
tail -c +100 "$text" >"$work/other"
refuses 'the base belongs to another text' "${compare[@]}" "$base" -f "$work/other"
head -c 100 "$text" >"$work/short"
refuses 'belongs to another text' "${compare[@]}" "$base" -f "$work/short"

# Nothing half-written: a disk that is full in the middle (here a limit on the size of files), and a name that is no file.
cp "$base" "$work/kept"
status=0
(trap '' XFSZ && ulimit -f 100 && exec "$terse" perplexity -f "$text" -c 64 --chunks 2 --kl-divergence-base "$work/kept") \
    >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 1 ] || fail "exit $status with a full disk"
drop_progress
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "full disk: $(cat "$work/err")"
grep -q "cannot write $work/kept" "$work/err" || fail "full disk: $(cat "$work/err")"
cmp "$base" "$work/kept" || fail "a failed run changed the file that was there"
[ "$(echo "$work"/*.tmp)" = "$work/*.tmp" ] || fail "a temporary file was left: $(ls "$work")"
interrupts perplexity -f data/demo.txt -c 64 --kl-divergence-base "$work/interrupted"
[ "$(echo "$work"/interrupted*)" = "$work/interrupted*" ] || fail "a file was left: $(ls "$work")"
refuses 'not a regular file' perplexity -f "$text" -c 64 --chunks 1 --kl-divergence-base /dev/full
refuses 'cannot write' perplexity -f "$text" -c 64 --chunks 1 --kl-divergence-base "$work/no/such/folder"
