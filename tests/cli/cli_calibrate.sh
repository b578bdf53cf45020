#!/usr/bin/env bash
# terse calibrate, and what the other commands do when a method needs a codebook: they find it, learn it once, or refuse.
. "$(dirname "$0")/../support/cli.sh"
model=tests/fixtures/models/llama.gguf other=tests/fixtures/models/mistral.gguf # 2 layers, context 512
book=$work/book.gguf
options="-m $model -f $text -c 100 --chunks 4"

# nothing_in FOLDER: no file anywhere in it, if it is there at all.
nothing_in() { [ ! -e "$1" ] || [ -z "$(find "$1" -type f)" ] || fail "$2: left $(find "$1" -type f)"; }

refuses 'no method given: pass --kv with one of .*antkv-1' calibrate
refuses 'f16 learns nothing' calibrate --kv f16
refuses 'streaming-64 learns nothing' calibrate --kv streaming-64
refuses "unknown KV method 'antkv-7'" calibrate --kv antkv-7
refuses "--weighting takes one of own|none|part|head, not \"much\"" calibrate --kv antkv-1 --weighting much
refuses '--power takes a whole number from 0 to 2' calibrate --kv antkv-1 --power 3
refuses 'No such file' calibrate --kv antkv-1 -f "$work/missing"
refuses 'cannot write .*/none/book: No such file' calibrate --kv antkv-1 -o "$work/none/book"
XDG_CACHE_HOME=/dev/null/none refuses '^terse calibrate: cannot write /dev/null/none/.*: Not a directory$' calibrate -m $model --kv terse-4
head -c 200 "$text" >"$work/short"
refuses 'too few for a window of 400' calibrate -m $model --kv antkv-1 -f "$work/short" -c 400
refuses "the model's context" calibrate -m $model --kv antkv-1 -c 513

# The command: what it says, the same bytes for the same seed with any number of threads, others for another seed.
# Word splitting is meant, here and below.
# shellcheck disable=SC2086
works calibrate $options --kv antkv-1 -o "$book"
grep -q "^codebook = $book, [0-9.]* MiB (antkv-1 for llama, fingerprint [0-9a-f]\{16\})\$" "$work/out" || fail "$(cat "$work/out")"
grep -q '^learned from 400 tokens of wiki_excerpt.txt in [0-9.]* s; weights: gradient.*, effective samples: [0-9]*$' "$work/out" ||
    fail "$(cat "$work/out")"
[ "$(number_after 'effective samples: ' "$work/out")" -lt 400 ] || fail "weighted samples count as if unweighted: $(cat "$work/out")"
[ ! -s "$work/err" ] || fail "short work on stderr: $(cat "$work/err")"
works calibrate $options --kv antkv-1 -o "$work/again.gguf" -t 2
cmp "$book" "$work/again.gguf" || fail "two threads make another codebook"
works calibrate $options --kv antkv-1 -o "$work/again.gguf" -s 2
! cmp -s "$book" "$work/again.gguf" || fail "another seed makes the same codebook"
works calibrate $options --kv cq-1 -o "$work/again.gguf"
grep -q 'weights: none, effective samples: 384$' "$work/out" || fail "$(cat "$work/out")"
works calibrate $options --kv antkv-1 -o "$work/shared.gguf" --shared
[ "$(wc -c <"$work/shared.gguf")" -lt "$(wc -c <"$book")" ] || fail "shared centroids are no fewer"
works calibrate $options --kv antkv-1 -o "$work/mean.gguf" --mean subtract
cmp -s "$book" "$work/mean.gguf" && fail "--mean subtract makes the same codebook"
[ "$(wc -c <"$work/mean.gguf")" -eq "$(wc -c <"$book")" ] || fail "--mean subtract makes another shape"
works calibrate $options --kv antkv-1 -o "$work/again.gguf" --mean none
cmp "$book" "$work/again.gguf" || fail "antkv subtracts a mean by itself"
works calibrate $options --kv commvq-1 -o "$work/commvq.gguf"
works calibrate $options --kv commvq-1 -o "$work/again.gguf" --mean subtract
cmp "$work/commvq.gguf" "$work/again.gguf" || fail "commvq subtracts no mean by itself"
refuses 'cq-1 normalizes no rows' calibrate $options --kv cq-1 -o "$work/refused.gguf" --mean none
refuses 'terse-2 normalizes no rows' calibrate $options --kv terse-2 -o "$work/refused.gguf" --mean subtract
[ "$(echo "$work"/*.part)" = "$work/*.part" ] || fail "a part of a file was left: $(ls "$work")"
nothing_in "$work/cache" 'calibrate -o'

# Given by hand, it is used, and nothing is learned.
for codebook in "$book" "$work/shared.gguf"; do
    works run -m $model -p 'some text' -n 8 --kv antkv-1 --codebook "$codebook"
    [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '(antkv-1)$' "$work/err" || fail "--codebook: $(cat "$work/err")"
    works perplexity -m $model -f "$text" -c 256 --chunks 1 --kv antkv-1 --codebook "$codebook" --no-auto-calibrate
done
works bench -m $model -p 8 -n 2 -r 1 -d 128 --kv f16,antkv-1 --codebook "$book"
nothing_in "$work/cache" '--codebook'
refuses "learned from the model 'llama'" run -m $other -p x --kv antkv-1 --codebook "$book"
refuses 'learned for the method antkv-1, not for antkv-2' run -m $model -p x --kv antkv-2 --codebook "$book"
refuses '--codebook is for methods that learn, and q8_0 learns nothing' run -m $model -p x --kv q8_0 --codebook "$book"
refuses '--codebook is for methods that learn, and f16 learns nothing' perplexity -m $model -f "$text" --codebook "$book"
refuses 'No such file' run -m $model -p x --kv antkv-1 --codebook "$work/missing"
refuses 'README.md' run -m $model -p x --kv antkv-1 --codebook README.md
head -c 5000 "$book" >"$work/cut.gguf"
refuses 'cut.gguf' run -m $model -p x --kv antkv-1 --codebook "$work/cut.gguf"

# Not found and not to be learned: refused, with what would make it.
way="make it with terse calibrate -m $model --kv antkv-1 (.* or more)\$"
refuses "antkv-1 needs a codebook .*$work/cache/terse/antkv-1-[0-9a-f]\{16\}.gguf; $way" run -m $model -p x --kv antkv-1 --no-auto-calibrate
refuses "$way" perplexity -m $model -f "$text" --kv antkv-1 --no-auto-calibrate
refuses "$way" bench -m $model -p 8 -n 0 -r 1 --kv f16,antkv-1 --no-auto-calibrate
# Errors in other options are found before anything is learned.
refuses 'No such file' run -m $model -f "$work/missing" --kv antkv-1
refuses '--allow-longer-context' run -m $model -p x -c 9999 --kv antkv-1
refuses "unknown KV method 'bogus'" bench -m $model -p 8 -n 0 -r 1 --kv antkv-1,bogus
refuses 'the prompt has [0-9]* tokens and the context room for 16' run -m $model -p "$(printf 'the cat %.0s' $(seq 40))" -c 16 --kv antkv-1 --auto-calibrate
refuses 'cannot write /nonexistent/x: No such file' run -m $model -p x --save-state /nonexistent/x --kv antkv-1 --auto-calibrate
refuses 'omit --prefill compressed' run -m $model -p x --prefill compressed --kv antkv-1 --auto-calibrate
# What takes minutes is not begun unasked.
refuses 'antkv-1 needs a codebook .*make it with terse calibrate --kv antkv-1 (about .* or more), or now with --auto-calibrate$' run -t 1 -p x --kv antkv-1
nothing_in "$work/cache" 'refusals'

# Not found: learned once, said in one line, and found from then on by every command.
works run -m $model -p 'some text' -n 4 --kv antkv-1
announcement='^antkv-1 needs a codebook for llama, .*: learning one from WikiText validation, 128 windows of 512 tokens, .* take about [0-9]* second'
[ "$(wc -l <"$work/err")" -eq 2 ] && head -n 1 "$work/err" | grep -q "$announcement" || fail "no announcement: $(cat "$work/err")"
kept=$(find "$work/cache" -type f)
case $kept in "$work"/cache/terse/antkv-1-*.gguf) ;; *) fail "kept: $kept" ;; esac
cp "$kept" "$work/first"
works run -m $model -p 'some text' -n 4 --kv antkv-1
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "learned a second time: $(cat "$work/err")"
works perplexity -m $model -f "$text" -c 64 --chunks 1 --kv antkv-1 --no-auto-calibrate
works bench -m $model -p 8 -n 0 -r 1 --kv antkv-1 --no-auto-calibrate
cmp "$kept" "$work/first" || fail "the kept codebook has changed"

# One that is kept but of no use is not trusted, in one line, and learned anew.
head -c 5000 "$book" >"$kept"
works run -m $model -p x -n 1 --kv antkv-1
head -n 1 "$work/err" | grep -q 'cannot be used: .*antkv-1-' || fail "a damaged codebook: $(cat "$work/err")"
cmp "$kept" "$work/first" || fail "the damaged codebook was not replaced"
works calibrate $options --kv antkv-2 -o "$kept"
run run -m $model -p x -n 1 --kv antkv-1 --no-auto-calibrate
[ "$status" -eq 1 ] && head -n 1 "$work/err" | grep -q 'is for another method or model' || fail "another method's: $(cat "$work/err")"
rm "$kept"

# terse calibrate puts its own where the others look.
works calibrate $options --kv antkv-1
[ "$(find "$work/cache" -type f)" = "$kept" ] || fail "calibrate kept $(find "$work/cache" -type f)"
works run -m $model -p x -n 1 --kv antkv-1 --no-auto-calibrate
# A codebook is not replaced by one learned from fewer tokens, unless -o puts that elsewhere; one learned from as many replaces it.
cp "$kept" "$work/first"
refuses "$kept is there already, learned from 400 tokens of wiki_excerpt.txt, .* from 300: give -o FILE" calibrate $options --kv antkv-1 --chunks 3
cmp "$kept" "$work/first" || fail "a codebook of fewer tokens has replaced one of more"
works calibrate $options --kv antkv-1 --chunks 3 -o "$work/fewer.gguf"
works calibrate $options --kv antkv-1 -s 2
! cmp -s "$kept" "$work/first" || fail "a codebook of as many tokens does not replace what is there"
head -c 5000 "$book" >"$kept"
works calibrate $options --kv antkv-1 --chunks 3
rm -r "$work/cache"

# A profile: one for every terse-N, made once, found by all; the built-in model's is part of the command.
works calibrate $options --kv terse-2 -o "$work/profile.gguf" -t 2
grep -q "^profile = $work/profile.gguf, [0-9.]* MiB (every terse-N for llama, fingerprint [0-9a-f]\{16\})\$" "$work/out" || fail "$(cat "$work/out")"
[ "$(number_after 'takes ' "$work/out" | tr -d .)" -lt "$(number_after 'instead of ' "$work/out" | tr -d .)" ] || fail "no gain: $(cat "$work/out")"
works calibrate $options --kv terse-0.5 -o "$work/again.gguf" -t 1
cmp "$work/profile.gguf" "$work/again.gguf" || fail "another rate or number of threads makes another profile"
refuses 'do without --shared' calibrate $options --kv terse-2 -o "$work/again.gguf" --shared
works inspect "$work/profile.gguf"
grep -q '^This is a profile' "$work/out" || fail "inspect: $(head -n 3 "$work/out")"
works run -m $model -p 'some text' -n 4 --kv terse-2 --codebook "$work/profile.gguf"
refuses "profile was learned from the model 'llama'" run -m $other -p x --kv terse-2 --codebook "$work/profile.gguf"
refuses 'learned for the method terse, not for antkv-2' run -m $model -p x --kv antkv-2 --codebook "$work/profile.gguf"
refuses 'terse calibrate --kv terse-N' run -m $model -p x --kv terse-2 --codebook "$book"
works run -m $model -p 'some text' -n 4 --kv terse-2
nothing_in "$work/cache" 'a profile that nobody asked for'
works run -m $model -p 'some text' -n 4 --auto-calibrate --no-auto-calibrate
nothing_in "$work/cache" '--no-auto-calibrate'
works run -m $model -p 'some text' -n 4 --kv terse-2 --auto-calibrate
[ "$(wc -l <"$work/err")" -eq 2 ] && grep -q '^there is no profile of llama yet: .*once and for every terse-N; it takes about' "$work/err" ||
    fail "no announcement: $(cat "$work/err")"
case $(find "$work/cache" -type f) in "$work"/cache/terse/terse-*.gguf) ;; *) fail "kept: $(find "$work/cache" -type f)" ;; esac
works run -m $model -p 'some text' -n 4 -ctk terse-3
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "more than the summary where there is a profile: $(cat "$work/err")"
works bench -m $model -p 8 -n 0 -r 1 --kv terse-4,terse-0.5
[ ! -s "$work/err" ] || fail "a remark where there is a profile: $(cat "$work/err")"
rm -r "$work/cache"
works run -p x -n 1 --kv terse-1 --no-auto-calibrate
nothing_in "$work/cache" 'the built-in profile'

# No place, or none that can be written: said in one line, and the command goes on. A profile is what is learned in the least time.
XDG_CACHE_HOME=/dev/null/none works run -m $model -p x -n 1 --kv terse-2 --auto-calibrate
grep -q 'is not kept, and the next run will learn it again: .*/dev/null/none' "$work/err" || fail "no place: $(cat "$work/err")"
[ "$(wc -l <"$work/err")" -eq 3 ] || fail "no place: $(cat "$work/err")"
(
    unset HOME XDG_CACHE_HOME
    works run -m $model -p x -n 1 --kv terse-2 --auto-calibrate
    grep -q 'neither XDG_CACHE_HOME nor HOME' "$work/err" || fail "no HOME: $(cat "$work/err")"
    refuses 'give -o FILE' calibrate $options --kv antkv-1
) || exit 1

# Anchors.
for wrong in 1.5 101% -1 x % 1%% ''; do
    refuses '--anchors takes a part such as 1%' run -m $model -p x --kv antkv-1 --anchors "$wrong"
done
refuses 'anchors' run -m $model -p x --kv streaming-64 --anchors 1%
bits() { number_after 'tokens, ' "$work/out"; }
for anchors in 0 20 20%; do
    works perplexity -m $model -f "$text" -c 512 --chunks 1 --kv antkv-1 --kv-tail-tokens 0 --codebook "$book" --anchors $anchors
    eval "with_${anchors%\%}$(case $anchors in *%) echo _percent ;; esac)=$(bits)"
done
awk -v none="$with_0" -v some="$with_20" -v many="$with_20_percent" 'BEGIN { exit !(none < some && some < many) }' ||
    fail "bits with 0, 20 and 20 % anchors: $with_0, $with_20, $with_20_percent"
grep -q '(antkv-1, anchors 20%)' "$work/out" || fail "the anchors are not named: $(cat "$work/out")"

# An interrupt leaves nothing, neither of terse calibrate nor of terse run. The built-in model takes minutes.
interrupts calibrate --kv antkv-1 -o "$work/interrupted.gguf" -t 1
[ "$(echo "$work"/interrupted*)" = "$work/interrupted*" ] || fail "an interrupt left $(echo "$work"/interrupted*)"
interrupts run -p x --kv antkv-1 -t 1 --auto-calibrate
grep -q '^antkv-1 needs a codebook for lab-27m' "$work/err" || grep -q 's left' "$work/err" || fail "$(cat "$work/err")"
nothing_in "$work/cache" 'an interrupt'
