#!/usr/bin/env bash
# terse run --save-state and --state: the text goes on as if it had never stopped; a file that does not fit is refused in a line.
. "$(dirname "$0")/../support/cli.sh"

works run -p 'The old man went to the' -n 30 -s 7 --kv q4_0
cp "$work/out" "$work/whole"
works run -p 'The old man went to the' -n 12 -s 7 --kv q4_0 --save-state "$work/state"
head -c -1 "$work/out" >"$work/first"
works run --state "$work/state" -n 18 --kv q4_0
cat "$work/first" "$work/out" | cmp - "$work/whole" || fail "the text went on differently: $(cat "$work/out")"
works run --state "$work/state" -n 18 --kv q4_0 --temp 0
cat "$work/first" "$work/out" | cmp -s - "$work/whole" && fail "--temp 0 has no effect beside --state"

# Text behind it, and saved over itself.
works run --state "$work/state" -p ' and then' -n 4 --kv q4_0 --save-state "$work/state"
grep -q '^prompt [1-9]' "$work/err" || fail "-p was not read: $(cat "$work/err")"
works run --state "$work/state" -n 1 --kv q4_0
[ "$(echo "$work"/*.part)" = "$work/*.part" ] || fail "a part was left behind: $(ls "$work")"

# A conversation.
printf 'Hello\n' | "$terse" run -cnv --chat-template chatml -n 5 --temp 0 --kv f16 --save-state "$work/chat" >/dev/null 2>&1 || fail "-cnv cannot be saved"
works run --chat --chat-template chatml --state "$work/chat" -p 'Who?' -n 5 --temp 0 --kv f16

refuses 'was saved with another cache (q4_0) than this session.s (terse-4)' run --state "$work/state" -n 1 --kv terse-4
works run --state "$work/state" -n 1 # without --kv as it was saved
{ head -c -70 "$work/state"; tail -c 70 "$work/state" | tr '\000-\377' '\001-\377\000'; } >"$work/damaged" # its end
refuses 'damaged: ' run --state "$work/damaged" -n 1
works run -p 'The old man' -n 2 --codebook none --save-state "$work/own"
refuses 'saved with another cache (transforms of the sequence) .*use the method and options that it was saved with, which had no profile: --codebook none' run --state "$work/own" -n 1
works run --state "$work/own" -n 1 --codebook none
refuses 'was saved with another model' run -m tests/fixtures/models/llama.gguf --kv q4_0 --state "$work/state" -n 1
refuses 'cannot be read: No such file' run --state "$work/missing" -n 1
refuses 'not a saved state' run --state README.md -n 1
refuses 'do not fit the context' run --state "$work/state" --kv q4_0 -n 1 -c 8
refuses 'nothing to read' run --state "$work/state" --kv q4_0 --chat -n 1
head -c 1000 "$work/state" >"$work/cut"
refuses 'incomplete' run --state "$work/cut" --kv q4_0 -n 1
refuses 'cannot write /nowhere/state: No such file' run -p x -n 1 --kv q4_0 --save-state /nowhere/state
