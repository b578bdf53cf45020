#!/usr/bin/env bash
# terse inspect: a model that runs, one that does not, and files that are none.
. "$(dirname "$0")/../support/cli.sh"
model=models/lab-27m-q8_0.gguf

works inspect $model
grep -q '^terse can run this file' "$work/out" || fail "the shipped model: $(head -n 3 "$work/out")"
grep -q '12 layers of width 384, 6 query heads and 2 KV heads of 128' "$work/out" || fail "shape: $(head -n 6 "$work/out")"
grep -q '| general.architecture *| string *| llama' "$work/out" || fail "no metadata"
grep -q '^| Q8_0 ' "$work/out" || fail "no summary of tensors"
! grep -q 'token_embd.weight' "$work/out" || fail "the full list without --tensors"
works inspect $model --tensors -c 16 # too short a context to measure the machine in
grep -q '^| token_embd.weight *| Q8_0 *| 384 x 8192 ' "$work/out" || fail "no list of tensors"
works inspect -c 16
grep -q '^terse can run this file' "$work/out" || fail "the built-in model"

works inspect $model -o json --tensors --budget 96M
[ "$(json "$work/out" shape context)" = 32768 ] || fail "json: shape"
[ "$(json "$work/out" methods 0 kv)" = f16 ] || fail "json: methods"
near "$(json "$work/out" methods 0 bytes_per_token)" 12288 0.001 || fail "f16: $(json "$work/out" methods 0)"
near "$(json "$work/out" methods 0 mib_at_context)" 384 0.001 || fail "f16: $(json "$work/out" methods 0)"
near "$(json "$work/out" methods 0 context_in_budget)" 8192 0.01 || fail "f16: $(json "$work/out" methods 0)"
near "$(json "$work/out" methods 1 bits_per_value)" 8.5 0.02 || fail "q8_0: $(json "$work/out" methods 1)"
near "$(json "$work/out" methods 1 context_in_budget)" 15420 0.02 || fail "q8_0: $(json "$work/out" methods 1)"
row=0
until [ "$(json "$work/out" methods $row kv)" = streaming-512 ]; do
    row=$((row + 1))
    [ $row -lt 99 ] || fail "no streaming-512 among the methods"
done
[ "$(json "$work/out" methods $row context_in_budget)" = "without end" ] || fail "streaming: $(json "$work/out" methods $row)"
json "$work/out" tensors 0 name >/dev/null || fail "json: tensors"
works inspect $model -o json --budget 400G -c 16
[ "$(json "$work/out" methods 0 context_in_budget)" = 32768 ] || fail "more than the model's context: $(json "$work/out" methods 0)"
works inspect $model -o csv --budget 1G
[ "$(csv_fields "$work/out")" -eq 6 ] || fail "csv: $(cat "$work/out")"
works inspect $model -o csv --tensors
[ "$(csv_fields "$work/out")" -eq 5 ] || fail "csv: $(cat "$work/out")"

# The section about this machine tells memory, which must agree with the table of methods and the shape, and speeds, which no test can know.
works inspect $model -c 4096
section=$(sed -n '/^## On this machine, with 4096 tokens of context$/,/^## [^O]/p' "$work/out")
for line in 'memory:  *[0-9]* MiB: weights 27, KV cache [0-9]* by terse-4, [0-9]* on the way (f16: 48), buffers' 'prompt:  *512 tokens in .* 4096 in .* tokens/s)' \
    'reply:  *[0-9.]* tokens/s at first, [0-9.]* behind 4096 tokens' 'method:  *terse-4, which fits itself to prompts of 2052 tokens and more; others by the profile' \
    'These are estimates from [0-9.]* seconds of computing with [0-9]* thread'; do
    echo "$section" | grep -q "^$line" || fail "no \"$line\" in: $section"
done
[ "$(echo "$section" | grep -c .)" -le 10 ] || fail "more than ten lines: $section"
works inspect $model -o json
row=0
until [ "$(json "$work/out" methods $row kv)" = "$(json "$work/out" forecast method)" ]; do row=$((row + 1)); done
bytes=$(json "$work/out" forecast cache_bytes)
[ "$(json "$work/out" methods $row mib_at_context)" = "$(awk -v b="$bytes" 'BEGIN { printf "%.17g", b / 2 ^ 20 }')" ] || fail "forecast: $bytes bytes of cache"
[ "$(json "$work/out" forecast cache_peak_bytes)" = "$bytes" ] || fail "with a profile bytes never shrink: $(json "$work/out" forecast)"
[ "$(json "$work/out" forecast weight_bytes)" = "$(json "$work/out" shape bytes)" ] || fail "forecast: weights"
[ "$(json "$work/out" forecast context)" = 32768 ] || fail "forecast: context"
awk -v some="$(json "$work/out" forecast prompt_512_seconds)" -v all="$(json "$work/out" forecast prompt_seconds)" \
    -v first="$(json "$work/out" forecast tokens_per_second)" -v last="$(json "$work/out" forecast tokens_per_second_at_context)" \
    'BEGIN { exit !(some > 0 && all > some && first > 0 && last > 0 && last <= first) }' || fail "forecast: $(json "$work/out" forecast)"
for form in '-o md' '-o json' '-o csv' '--fits 8G'; do
    refuses '-c 40000: the model was trained for 32768 tokens: use -c 32768, or --allow-longer-context' inspect $model -c 40000 $form
done
works inspect $model -o csv -c 40000 --allow-longer-context --budget 600M
near "$(awk -F, '$1 == "f16" { print $(NF - 1) }' "$work/out")" 468.75 0.001 || fail "f16 with 40000 tokens: $(cat "$work/out")"
near "$(awk -F, '$1 == "f16" { print $NF }' "$work/out")" 51200 0.01 || fail "f16, tokens in 600 MiB: $(cat "$work/out")"
# Without a profile: the same method, and what a profile would be good for and take to learn.
works inspect tests/fixtures/models/qwen3.gguf
grep -q '^method:  *terse-4, which fits itself to each text from 2052 tokens on; shorter ones stay as they are$' "$work/out" || fail "without a profile: $(head -n 20 "$work/out")"
grep -q '^calibration: to compress shorter texts too, and to choose the rate (--kv auto): terse calibrate -m tests/fixtures/models/qwen3.gguf --kv terse-4 (.*, once)$' "$work/out" || fail "calibration: $(head -n 20 "$work/out")"
# What it foretells is what is allocated, below and above the tokens from which on a cache without a profile fits. It takes most before that.
LC_ALL=C sed 's/\(llama.context_length\x04\x00\x00\x00\)\x00\x02/\1\x00\x10/' tests/fixtures/models/llama.gguf >"$work/long.gguf"
for n in 1024 2052 2116 4036 4096; do
    works inspect "$work/long.gguf" -o json -c $n
    bytes=$(json "$work/out" forecast cache_bytes)
    eval "bytes_$n=$bytes peak_$n=$(json "$work/out" forecast cache_peak_bytes)"
    works bench -m "$work/long.gguf" -p $n -n 0 -r 1 --kv terse-4 --codebook none -o json
    [ "$(json "$work/out" 0 kv_mib)" = "$(awk -v b="$bytes" 'BEGIN { printf "%.17g", b / 2 ^ 20 }')" ] ||
        fail "$n tokens: $bytes bytes were foretold: $(cat "$work/out")"
done
# shellcheck disable=SC2154
[ "$bytes_2116" -lt "$bytes_2052" ] && [ "$bytes_4096" -lt "$bytes_4036" ] && [ "$peak_4096" = "$bytes_4036" ] && [ "$peak_2116" = "$bytes_2052" ] &&
    [ "$peak_1024" = "$bytes_1024" ] || fail "bytes $bytes_1024, $bytes_2052, $bytes_2116, $bytes_4036, $bytes_4096; at most $peak_1024, $peak_2116, $peak_4096"
works inspect "$work/long.gguf" -c 4096
grep -q '^memory: .* by terse-4, [0-9]* on the way (f16' "$work/out" || fail "on the way: $(head -n 20 "$work/out")"
works inspect "$work/long.gguf" -o json --budget "$bytes_2116" # which more tokens take than 2,116, before they are compressed
row=0
until [ "$(json "$work/out" methods $row kv)" = terse-4 ]; do row=$((row + 1)); done
[ "$(json "$work/out" methods $row context_in_budget)" -lt 2052 ] || fail "in $bytes_2116 bytes: $(json "$work/out" methods $row)"
# For a context too short to measure in it tells memory alone.
works inspect $model -c 16
grep -q '^memory: ' "$work/out" || fail "-c 16: $(head -n 20 "$work/out")"
! grep -q '^prompt:\|^reply:\|^These are estimates' "$work/out" || fail "-c 16: $(head -n 20 "$work/out")"

# A well-formed file that terse cannot run: the same with another architecture's name of the same length.
sed '0,/general.architecture\(.\{12\}\)llama/s//general.architecture\1mamba/' $model >"$work/mamba.gguf"
[ "$(cmp -l $model "$work/mamba.gguf" | wc -l)" -ge 3 ] || fail "the file was not changed"
cannot_run() {
    run inspect "$@"
    [ "$status" -eq 2 ] && [ ! -s "$work/err" ] || fail "terse inspect $*: exit $status instead of 2: $(cat "$work/err")"
}
cannot_run "$work/mamba.gguf"
grep -q '^terse cannot run this file: .*mamba' "$work/out" || fail "mamba: $(head -n 3 "$work/out")"
grep -q '| general.architecture *| string *| mamba' "$work/out" || fail "mamba: no metadata"
[ "$(grep -c mamba.gguf "$work/out")" -eq 1 ] || fail "mamba: the file is not named once: $(cat "$work/out")"
cannot_run "$work/mamba.gguf" -o json
json "$work/out" refusal | grep -q mamba || fail "mamba: json"
refuses mamba run -m "$work/mamba.gguf" -p x

# A file of nothing: no tables without rows.
printf 'GGUF\3\0\0\0%16s' '' | tr ' ' '\0' >"$work/nothing.gguf"
cannot_run "$work/nothing.gguf" --tensors
grep -q '^terse cannot run this file: ' "$work/out" || fail "nothing: $(cat "$work/out")"
! grep -q '^##\|^|' "$work/out" || fail "nothing: an empty table: $(cat "$work/out")"

refuses 'README.md' inspect README.md
refuses 'No such file' inspect "$work/missing.gguf"
head -c 5000 $model >"$work/cut.gguf"
refuses 'cut.gguf' inspect "$work/cut.gguf"

# A codebook: said to be one, for what model and method, and nothing of a model that it is not.
fixture=tests/fixtures/llama.codebook
works inspect $fixture --tensors
grep -q '^This is a codebook' "$work/out" || fail "codebook: $(head -n 3 "$work/out")"
grep -q '^method fixture, for the model "llama" of fingerprint 79f84713909f2f68$' "$work/out" || fail "codebook: $(head -n 6 "$work/out")"
grep -q '^| keys *| F16 *| 8 x 16 x 4 x 4 ' "$work/out" || fail "codebook: no list of tensors"
! grep -q 'can run\|cannot run\|KV cache at' "$work/out" || fail "codebook: taken for a model: $(cat "$work/out")"
works inspect $fixture -o json
[ "$(json "$work/out" codebook method)" = fixture ] || fail "codebook: json"
[ "$(json "$work/out" codebook tokens)" = 1099511627776 ] || fail "codebook: json: $(json "$work/out" codebook)"
grep -q '"seed":[[:space:]]*18446744073709551615' "$work/out" || fail "codebook: json: $(json "$work/out" codebook)"
# The model that it was learned from has the same fingerprint.
fingerprint=$(json "$work/out" codebook fingerprint)
works inspect tests/fixtures/models/llama.gguf -o json
[ "$(json "$work/out" shape fingerprint)" = "$fingerprint" ] || fail "fingerprint $(json "$work/out" shape fingerprint)"
works inspect tests/fixtures/models/llama.gguf
grep -q "^fingerprint $fingerprint\$" "$work/out" || fail "fingerprint: $(head -n 6 "$work/out")"
# Damaged, it is shown and refused.
sed 's/fixture/FIXTURE/' $fixture >"$work/damaged.codebook"
cannot_run "$work/damaged.codebook"
grep -q '^This is a codebook that terse cannot use: its checksum does not match' "$work/out" || fail "damaged: $(head -n 3 "$work/out")"
refuses 'it is a codebook, not a model' run -m $fixture -p x

# A model in parts runs by the first of them, and says which are missing.
"$(dirname "$terse")/split_gguf" tests/fixtures/models/llama.gguf "$work/split" 3
works inspect "$work/split-00001-of-00003.gguf"
grep -q "^fingerprint $fingerprint\$" "$work/out" || fail "parts: $(head -n 6 "$work/out")"
[ "$(grep -c '^| .*split-0000[1-3]-of-00003.gguf *| *[0-9]* *| *[0-9]* *|$' "$work/out")" -eq 3 ] || fail "parts: $(grep -A 6 Parts "$work/out")"
works inspect "$work/split-00001-of-00003.gguf" -o json
[ "$(json "$work/out" parts 0 tensors)" = 0 ] || fail "parts: json: $(json "$work/out" parts)"
works run -m "$work/split-00001-of-00003.gguf" -p x -n 2 --kv f16
cp "$work/out" "$work/parts"
works run -m tests/fixtures/models/llama.gguf -p x -n 2 --kv f16
cmp -s "$work/out" "$work/parts" || fail "a model in parts says something else"
refuses 'without --no-mmap' run -m "$work/split-00001-of-00003.gguf" -p x --no-mmap
refuses 'give the first, whose name ends in -00001-of-00003.gguf' run -m "$work/split-00002-of-00003.gguf" -p x
rm "$work/split-00002-of-00003.gguf"
refuses 'part 2 of 3: .*split-00002-of-00003.gguf: cannot be read' run -m "$work/split-00001-of-00003.gguf" -p x
cannot_run "$work/split-00001-of-00003.gguf"
grep -q '^terse cannot run this file: part 2 of 3: ' "$work/out" || fail "a missing part: $(head -n 3 "$work/out")"
