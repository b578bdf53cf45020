#!/usr/bin/env bash
# What users of llama.cpp type: docs/llama-cpp-users.md says what becomes of it.
. "$(dirname "$0")/../support/cli.sh"

works run -p 'The old man' -n 8 --temp 0 --kv f16
cp "$work/out" "$work/greedy"
works -p 'The old man' --n-predict 8 --temperature 0 -t -1 -no-cnv --no-display-prompt -fa on --color --mlock --repeat-last-n -1 --kv f16
cmp "$work/out" "$work/greedy" || fail "other names of options: $(cat "$work/out")"
for flag in '-fa' '-fa auto' '--flash-attn off' '-ngl 0'; do
    # shellcheck disable=SC2086
    works run $flag -p 'The old man' -n 8 --temp 0 --kv f16
    cmp "$work/out" "$work/greedy" || fail "$flag: $(cat "$work/out")"
done
works run -m models/lab-27m-q8_0.gguf --no-mmap -p 'The old man' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/greedy" || fail "--no-mmap: $(cat "$work/out")"
works run -p 'The old man' -n -2 --temp 0 --kv f16 -c 40 --ignore-eos
grep -q 'stopped: the context is full' "$work/err" || fail "-n -2: $(cat "$work/err")"

# A reply ends before a reverse prompt, whichever comes first.
word=$(tr -d '\n' <"$work/greedy" | awk '{ print $3 }')
works run -p 'The old man' -n 8 --temp 0 --kv f16 -r 'no such text' -r "$word"
[ -s "$work/out" ] && ! grep -q "$word" "$work/out" || fail "-r $word: $(cat "$work/out")"
grep -q "^$(head -c 5 "$work/out")" "$work/greedy" || fail "-r: another text: $(cat "$work/out")"
refuses '-r takes some text' run -p x -r ''
refuses '-r may come 8 times' run -p x -r a -r b -r c -r d -r e -r f -r g -r h -r i

# Escapes are resolved where that is asked for.
works run -p $'A\tB\nC"' -n 8 --temp 0 --kv f16
cp "$work/out" "$work/plain"
works run -e -p 'A\tB\nC\"' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/plain" || fail "-e: $(cat "$work/out")"
works run -p 'A\tB\nC\"' -n 8 --temp 0 --kv f16
! cmp -s "$work/out" "$work/plain" || fail "escapes are resolved without -e"

# The end is never chosen, and a saved session that goes on does the same if told so.
works run -p 'The end.' -n 60 --temp 0 --kv f16 --ignore-eos
[ "$(number_after 'generated ' "$work/err")" -eq 60 ] || fail "--ignore-eos: $(cat "$work/err")"

# A system message changes what is read.
works run --chat -p 'Hello' -n 4 --temp 0 --kv f16
without=$(number_after 'prompt ' "$work/err")
works run --chat -sys 'You are brief.' -p 'Hello' -n 4 --temp 0 --kv f16
[ "$(number_after 'prompt ' "$work/err")" -gt "$without" ] || fail "-sys is not read: $(cat "$work/err")"
refuses '-sys is for --chat and -cnv' run -p x -sys y
refuses '-cnv and -no-cnv exclude each other' run -cnv -no-cnv

refuses '-hf someone/model: terse downloads nothing' -hf someone/model -p x
