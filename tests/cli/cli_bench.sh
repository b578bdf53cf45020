#!/usr/bin/env bash
# terse bench: a row for each method, depth and test, in each form. Nothing here depends on how fast the machine is.
. "$(dirname "$0")/../support/cli.sh"

works bench -p 16 -n 4 -d 0,1024 -r 2 --kv f16,q8_0 -o json
for i in 0 1 2 3 4 5 6 7; do
    kv=f16
    [ $i -lt 4 ] || kv=q8_0
    [ "$(json "$work/out" $i kv)" = $kv ] || fail "row $i is not $kv: $(json "$work/out" $i)"
    awk -v rate="$(json "$work/out" $i tokens_per_second)" 'BEGIN { exit !(rate > 0) }' || fail "row $i has no rate"
    awk -v rate="$(json "$work/out" $i machine_gb_per_second)" 'BEGIN { exit !(rate > 0) }' || fail "row $i has no bandwidth"
done
! json "$work/out" 8 2>/dev/null || fail "more than 8 rows"
[ "$(json "$work/out" 0 test)" = pp16 ] && [ "$(json "$work/out" 1 test)" = tg4 ] || fail "tests at depth 0"
[ "$(json "$work/out" 2 test)" = "pp16 @ d1024" ] && [ "$(json "$work/out" 3 test)" = "tg4 @ d1024" ] || fail "tests at depth 1024"
! json "$work/out" 2 attention_ms 2>/dev/null || fail "a prompt has no attention of decoding steps"
# A step reads what was there before it, in whole pages of 64 tokens: 12 layers, 2 KV heads, 128 channels, keys and values, 2 bytes.
near "$(json "$work/out" 3 attention_mb)" "$(awk 'BEGIN { print 1024 * 12288e-6 }')" 0.07 || fail "f16 bytes: $(json "$work/out" 3)"
awk -v a="$(json "$work/out" 3 attention_mb)" -v b="$(json "$work/out" 7 attention_mb)" 'BEGIN { exit !(b < a) }' ||
    fail "q8_0 reads no less than f16"

works bench -p 0 -n 2 -d 100 -r 1 --fill text -f "$text" -o csv
[ "$(csv_fields "$work/out")" -gt 10 ] || fail "csv: $(cat "$work/out")"
[ "$(wc -l <"$work/out")" -eq 2 ] || fail "csv: $(cat "$work/out")"
grep -q ',tg2 @ d100,' "$work/out" || fail "csv: $(cat "$work/out")"

works bench -p 8 -n 0 -r 1
grep -q '^| f16 .* | pp8 ' "$work/out" || fail "md: $(cat "$work/out")"
works bench --kv snapkv-1024 -p 0 -n 1 -r 1 -d 600
grep -q '^| snapkv-1024 .* tg1 @ d600 ' "$work/out" || fail "md: $(cat "$work/out")"

# Sequences that are decoded together, and a codebook of random numbers: tokens/s and bytes are those of all, and weights are read once a step.
works bench -p 8 -n 4 -d 256 -r 1 --kv f16,million-4 --codebook random -np 3 -o json
[ "$(json "$work/out" 0 test)" = "pp8 x 3 @ d256" ] && [ "$(json "$work/out" 3 test)" = "tg4 x 3 @ d256" ] || fail "tests: $(cat "$work/out")"
[ "$(json "$work/out" 1 codebook)" = "" ] && [ "$(json "$work/out" 3 codebook)" = random ] || fail "codebooks: $(cat "$work/out")"
[ ! -e "$work/cache" ] || fail "a codebook of random numbers is kept"
three=$(json "$work/out" 1 kv_mib) attention=$(json "$work/out" 1 attention_mb)
works bench -p 0 -n 4 -d 256 -r 1 -o json
near "$three" "$(awk -v one="$(json "$work/out" 0 kv_mib)" 'BEGIN { print 3 * one }')" 0.1 || fail "bytes of three: $three, of one: $(json "$work/out" 0)"
near "$attention" "$(json "$work/out" 0 attention_mb)" 0.01 || fail "a token of three sequences reads $attention MB, one alone $(json "$work/out" 0)"
refuses 'whole number from 1 to 4096' bench -np 0

refuses '--allow-longer-context' bench -p 0 -n 1 -r 1 -d 40000

# A method that cannot be had is refused before the ones in front of it are measured.
refuses "unknown KV method 'bogus'" bench -p 8 -n 0 -r 1 --kv f16,bogus
refuses "unknown KV method ''" bench -p 8 -n 0 -r 1 --kv f16,
refuses 'streaming-1000 leaves no room' bench -p 8 -n 0 -r 1 --kv f16,streaming-1000

# All methods, each beside f16; codebooks are random, so that nothing is learned or kept.
works bench -m tests/fixtures/models/llama.gguf --allow-longer-context --kv all -p 8 -n 1 -r 1 -d 1100 -o csv
[ "$(csv_fields "$work/out")" -gt 10 ] && [ "$(wc -l <"$work/out")" -eq 55 ] || fail "all methods: $(cat "$work/out")"
grep -q ',f16,,.*,tg1 @ d1100,[0-9.]*,[0-9.]*,1.00,[0-9.]*,1.00,' "$work/out" || fail "f16 beside itself: $(cat "$work/out")"
grep -q ',commvq-1,random,.*,pp8 @ d1100,' "$work/out" || fail "a random codebook: $(cat "$work/out")"
for reading in 'selfindex-2, reading 100%' 'selfindex-2, reading 7.5%' 'quest, reading 7.5%'; do
    grep -q "\"$reading\",,.*,tg1 @ d1100," "$work/out" || fail "no $reading: $(cat "$work/out")"
done
[ ! -s "$work/err" ] || fail "remarks without a reason: $(cat "$work/err")"
[ ! -e "$work/cache" ] || fail "codebooks of random numbers are kept"

# Rows that the model cannot have are left out with a remark: for want of context, or because tokens that lie apart are not for ALiBi.
works bench --kv all -m tests/fixtures/models/mpt.gguf -p 8 -n 1 -r 1 -d 64
grep -q 'the machine reads [0-9.]* GB/s' "$work/out" || fail "md: $(cat "$work/out")"
grep -q '^Codebooks are random' "$work/out" || fail "md: $(cat "$work/out")"
grep -q '^| f16 .* | pp8 @ d64 ' "$work/out" && grep -q '^| commvq-1 .* tg1 @ d64 ' "$work/out" || fail "md: $(cat "$work/out")"
! grep -q 'streaming-1024' "$work/out" || fail "a method that does not fit: $(cat "$work/out")"
grep -q '^without streaming-1024: streaming-1024 leaves no room' "$work/err" || fail "no remark: $(cat "$work/err")"
grep -q '^without quest, reading 7.5%: .*ALiBi' "$work/err" || fail "no remark: $(cat "$work/err")"
[ "$(grep -c '^without ' "$work/err")" -eq 7 ] || fail "other remarks: $(cat "$work/err")"
refuses 'kv all chooses its methods' bench --kv all -ctk q8_0
refuses 'kv all fills caches at random' bench --kv all --fill text -f "$text"
refuses '-r takes a whole number from 1' bench -r 0
refuses '--allow-longer-context' bench --kv all -d 40000

interrupts bench --kv all -t 1 -d 500

# The bar moves, and an interrupt ends it, while a text is read to the depth, which takes one thread a minute or more.
interrupts bench -p 0 -n 1 -r 1 -d 32000 -t 1 --fill text -f "$text"
reached=$(number_after 'bench \[[-#]*\] *' "$work/err")
[ -n "$reached" ] || fail "no progress while the text is read: $(cat "$work/err")"
[ "$reached" -lt 50 ] || fail "an interrupt waits for the text: $(cat "$work/err")"
[ ! -s "$work/out" ] || fail "rows of an interrupted bench: $(cat "$work/out")"
