#!/usr/bin/env bash
# terse run: completion. The same seed gives the same text, greedy is greedy, the summary tells what the cache holds, and a text can
# be written past the context at constant memory.
. "$(dirname "$0")/../support/cli.sh"

summary='^prompt [0-9]* tokens, [0-9.]* tokens/s | generated [0-9]* tokens, [0-9.]* tokens/s | KV cache [0-9.]* MiB (terse-4)$' # of few tokens bits per value would be those of tables

works run -p 'The old man went to the' -n 24 -s 7
cp "$work/out" "$work/first"
[ -s "$work/first" ] || fail "no text"
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "more on stderr than the summary: $(cat "$work/err")"
grep -q "$summary" "$work/err" || fail "no summary: $(cat "$work/err")"
[ "$(number_after 'generated ' "$work/err")" -le 24 ] || fail "-n was not kept: $(cat "$work/err")"
works run -p 'The old man went to the' -n 24 -s 7
cmp "$work/out" "$work/first" || fail "the same seed gave another text"
works run -p 'The old man went to the' -n 24 -s 8
! cmp -s "$work/out" "$work/first" || fail "another seed gave the same text"
[ "$(tail -c 1 "$work/out" | od -An -tx1 | tr -d ' ')" = 0a ] || fail "the text does not end its line"

# Greedy: the seed does not matter, nor does --top-k 1 differ from --temp 0, nor the number of threads.
works run -p 'The old man went to the' -n 16 --temp 0 -s 1
cp "$work/out" "$work/greedy"
works run -p 'The old man went to the' -n 16 --temp 0 -s 2
cmp "$work/out" "$work/greedy" || fail "greedy depends on the seed"
works run -p 'The old man went to the' -n 16 --top-k 1 -s 3
cmp "$work/out" "$work/greedy" || fail "--top-k 1 is not greedy"
works run -m models/lab-27m-q8_0.gguf -p 'The old man went to the' -n 16 --temp 0 -t 1
cmp "$work/out" "$work/greedy" || fail "the built-in model is not models/lab-27m-q8_0.gguf"

# Standard input, asked for and as what is left where nothing is given.
for arguments in '' '-f -'; do
    # shellcheck disable=SC2086
    echo 'The old man went to the' | "$terse" run $arguments -n 16 --temp 0 >"$work/out" 2>"$work/err" || fail "standard input: $(cat "$work/err")"
    cmp "$work/out" "$work/greedy" || fail "standard input is another text than -p"
done

# -f and -p: the file, an empty line, the prompt.
printf 'The old man\n' >"$work/file"
printf 'The old man\n\nwent to the' >"$work/joined"
works run -f "$work/file" -p 'went to the' -n 8 --temp 0
cp "$work/out" "$work/two"
works run -f "$work/joined" -n 8 --temp 0
cmp "$work/out" "$work/two" || fail "-f with -p is not the file, an empty line and the prompt"
works run -p x -n 0
[ "$(number_after 'generated ' "$work/err")" -eq 0 ] || fail "-n 0 generates"

# Other caches: fewer bits, and both ways to read a prompt.
head -c 4000 "$text" >"$work/long" # some 1,350 tokens
works run -f "$work/long" -n 4
grep -q '(terse-4)$' "$work/err" || fail "without --kv the cache is not terse-4: $(cat "$work/err")"
works run -f "$work/long" -n 4 -ctk q8_0
grep -q '(terse-4, keys q8_0)$' "$work/err" || fail "with only -ctk values are not terse-4: $(cat "$work/err")"
refuses 'cannot open\|No such file' run -p x -n 1 --codebook "$work/missing"
refuses 'codebook is for methods that learn' run -p x -n 1 --codebook "$work/missing" -ctk q8_0 -ctv q8_0
# Without a profile the default is the same, and none is learned unasked. A method that fits itself to the text needs no remark, nor does one that the
# user did not name.
small=tests/fixtures/models/llama.gguf
# silent METHOD ARGUMENTS: the summary alone, which names the method.
silent() {
    local method=$1
    shift
    works run -m $small "$@"
    [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q "($method)\$" "$work/err" || fail "$*: $(cat "$work/err")"
    [ ! -e "$work/cache" ] || fail "$*: a profile was kept: $(find "$work/cache" -type f)"
}
longer='-c 4096 --allow-longer-context'
silent terse-4 -p 'a' -n 2
silent terse-4 -p 'a' -n 2 --no-auto-calibrate
silent terse-2 -p 'a' -n 2 --kv terse-2 --codebook none
# shellcheck disable=SC2086
silent terse-2 -f "$work/long" -n 4 $longer --kv terse-2 # some 3,800 tokens of this model
# One that is named does nothing for a text that stays too short, or a context: that is said in a line.
said="fits itself to each text from 2052 tokens on; shorter ones stay as they are (terse calibrate -m $small --kv terse-4 lets it compress these too)\$"
# says METHOD ARGUMENTS
says() {
    local method=$1
    shift
    works "$@"
    [ "$(grep -c "^$method $said" "$work/err")" -eq 1 ] || fail "$*: nothing, or too much, about a short text: $(cat "$work/err")"
    [ ! -e "$work/cache" ] || fail "$*: a profile was kept: $(find "$work/cache" -type f)"
}
# shellcheck disable=SC2086
says terse-2 run -m $small -p 'a' -n 2 --kv terse-2 $longer
says terse-2 run -m $small -p 'a' -n -1 -c 32 --kv terse-2
says 'terse-4, keys q8_0' run -m $small -p 'a' -n 2 -ctk q8_0
says terse-2 perplexity -m $small -f "$text" -c 128 --chunks 1 --kv terse-2
says terse-3 bench -m $small -p 8 -n 0 -r 1 --kv f16,terse-3,terse-2
printf 'a\n' | "$terse" run -m $small -cnv --in-prefix '' --in-suffix '' -n 2 $longer --kv terse-2 >"$work/out" 2>"$work/err" || fail "a chat: $(cat "$work/err")"
! grep -q '2052' "$work/err" || fail "a chat, which may become long, is called short: $(cat "$work/err")"
works perplexity -m $small -f "$text" -c 128 --chunks 1 --kv terse-2 --paper
grep -q "^without a profile of llama terse-2 goes by the weights alone with --paper, and is much worse (terse calibrate -m $small --kv terse-4 learns one)\$" "$work/err" ||
    fail "--paper: $(cat "$work/err")"
refuses '600 tokens is longer than the 512' run -m $small -p 'a' -n 2 --kv terse-2 -c 600
works run -m $small -p 'a' -n 2 --kv terse-2 --auto-calibrate
grep -q '^there is no profile of llama yet: learning one from WikiText validation' "$work/err" && grep -q '(terse-2)$' "$work/err" ||
    fail "no profile is learned where one is asked for: $(cat "$work/err")"
works run -m $small -p 'a' -n 2 --kv terse-4
grep -q '(terse-4)$' "$work/err" || fail "a kept profile is not used: $(cat "$work/err")"
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "more than the summary where there is a profile: $(cat "$work/err")"
rm -r "$work/cache"
works run -f "$work/long" -n 4 --codebook none # fewer than 2,052 tokens, which are exact
[ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '(terse-4)$' "$work/err" || fail "without the built-in profile: $(cat "$work/err")"
near "$(number_after 'MiB, ' "$work/err")" 16 0.15 || fail "short texts are not exact: $(cat "$work/err")"
refuses 'antkv-1 cannot do without' run -p x -n 1 --kv antkv-1 --codebook none
works run -f "$work/long" -n 4 --kv f16 --codebook none # which asks for nothing where nothing is learned
near "$(number_after 'MiB, ' "$work/err")" 16 0.15 || fail "f16 is not about 16 bits: $(cat "$work/err")"
works run -f "$work/long" -n 4 --kv q4_0 --kv-tail-tokens 0
near "$(number_after 'MiB, ' "$work/err")" 5 0.15 || fail "q4_0 and its window are not about 5 bits: $(cat "$work/err")"
grep -q '(q4_0)$' "$work/err" || fail "the summary does not name the method: $(cat "$work/err")"
works run -f "$work/long" -n 4 -ctk q8_0 -ctv q4_0 --kv-tail-tokens 0
near "$(number_after 'MiB, ' "$work/err")" 7 0.15 || fail "q8_0 keys and q4_0 values are not about 7 bits: $(cat "$work/err")"
grep -q '(terse-4, keys q8_0, values q4_0)$' "$work/err" || fail "the summary does not name the types: $(cat "$work/err")"
works run -f "$work/file" -n 4 --temp 0 --prefill compressed -b 2

# A full context ends the text; --kv streaming-N goes on past it, in memory that does not grow.
works run -p 'Once upon a time there was' -c 32 -n 100 --temp 0
grep -q 'the context is full' "$work/err" || fail "nothing about the full context: $(cat "$work/err")"
[ "$(number_after 'generated ' "$work/err")" -lt 32 ] || fail "more tokens than the context holds: $(cat "$work/err")"
works run -p 'Once upon a time there was' -c 96 -n 100 --temp 0 --repeat-penalty 1.3 --kv streaming-64
[ "$(number_after 'generated ' "$work/err")" -eq 100 ] || fail "streaming stopped: $(cat "$work/err")"
size=$(number_after 'KV cache ' "$work/err")
works run -p 'Once upon a time there was' -c 96 -n 160 --temp 0 --repeat-penalty 1.3 --kv streaming-64
[ "$(number_after 'generated ' "$work/err")" -eq 160 ] || fail "streaming stopped: $(cat "$work/err")"
[ "$(number_after 'KV cache ' "$work/err")" = "$size" ] || fail "the streaming cache grew from $size MiB: $(cat "$work/err")"

# An interrupt ends it after the current token, with the summary.
interrupts run -p 'Once upon a time' -n -1 --temp 0 --repeat-penalty 1.3 --kv streaming-64
grep -q "generated" "$work/err" || fail "no summary after an interrupt: $(cat "$work/err")"

# After many tokens the summary tells bits per value.
works run -f "$work/long" -n 1
bits=$(number_after 'MiB, ' "$work/err")
awk -v bits="$bits" 'BEGIN { exit !(bits > 4 && bits < 10) }' || fail "bits per value: $(cat "$work/err")"
