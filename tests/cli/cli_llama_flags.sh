#!/usr/bin/env bash
# Flags that users of llama.cpp type work or are refused as docs/llama-cpp-users.md says.
. "$(dirname "$0")/../support/cli.sh"

works run -p 'The old man' -n 8 --temp 0 --kv f16
cp "$work/out" "$work/greedy"
works -p 'The old man' --n-predict 8 --temperature 0 -t -1 -no-cnv --no-display-prompt -fa on --color --mlock --repeat-last-n -1 --kv f16
cmp "$work/out" "$work/greedy" || fail "other names of options: $(cat "$work/out")"
for flag in '-fa' '-fa auto' '-fa 1' '--flash-attn off' '-ngl 0' '--jinja -ub 64 -tb 2 --no-warmup --log-disable' '-v --simple-io --no-escape --mmap' \
    '--no-context-shift --swa-full --no-perf --prio 2' '--keep -1 -cb --log-colors off --seed=1 --top-k=40' '-fa --keep=4'; do
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
many=()
for i in $(seq 64); do many+=(-r "no such text $i"); done
works run -p 'The old man' -n 8 --temp 0 --kv f16 "${many[@]}" # as many as a request to the server may have
cmp "$work/out" "$work/greedy" || fail "64 times -r: $(cat "$work/out")"
refuses '-r may come 64 times' run -p x "${many[@]}" -r one-more

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
refuses '-hf: terse downloads nothing' run -p x -hf

# A value may be a part of a long name, and nothing else may.
works run --prompt='The old man' --predict=8 --temp=0 --kv=f16
cmp "$work/out" "$work/greedy" || fail "--key=value: $(cat "$work/out")"
refuses 'unknown option -c=9; see --help' run -p x -c=9
refuses 'x: cannot be read' run -p x --model=x
refuses '--predict takes a whole number from -2 to 2147483647, not "four"' run -p x --predict=four
refuses '--no-mmap takes no value: leave "=1" out' run -p x --no-mmap=1
refuses '--flash-attn takes one of on|off|auto|1|0, not "maybe"' run -p x --flash-attn=maybe
refuses 'unknown option --n-prdict; did you mean --n-predict?' run -p x --n-prdict=4

# A model without -m.
works models/lab-27m-q8_0.gguf -p 'The old man' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/greedy" || fail "terse MODEL.gguf: $(cat "$work/out")"
works run models/lab-27m-q8_0.gguf -p 'The old man' -n 8 --temp 0 --kv f16
cmp "$work/out" "$work/greedy" || fail "terse run MODEL.gguf: $(cat "$work/out")"
refuses 'two models: a.gguf, and -m b.gguf' a.gguf -m b.gguf -p x
refuses 'no-such.gguf: cannot be read' no-such.gguf -p x

# Flags that terse cannot honour are refused by name; none is taken for another option.
refuses '-np 2: one text is written at a time: terse serve takes -np' run -p x -np 2
refuses '-ts 3,1: a model is computed on one device' run -p x -ts 3,1
refuses '--context-shift: a context is not shifted: --kv streaming-N' run -p x --context-shift
refuses '--grammar x: there are no grammars: --json-schema' run -p x --grammar x
refuses '--keep needs a value: --keep N' run -p x --keep
refuses '--prio needs a value: --prio N' run -p x --prio -v
refuses 'unknown option -vx; see --help' run -p x -vx
refuses 'keys are not kept as q4_1 here: the nearest is q4_0' run -p x -ctk q4_1
refuses 'values are not kept as bf16 here: the nearest is f16' run -p x -ctv bf16
refuses 'keys are not kept as iq4_nl here: the nearest is q4_0' perplexity -f "$text" -c 64 -ctk iq4_nl
refuses 'values are not kept as q5_0 here: the nearest is terse-5' run -p x -ctv q5_0
refuses 'unknown option --jinja' inspect --jinja

# Every flag that is accepted or refused by name stands in the document.
names=$(sed -n 's/^    {"\(-[^"]*\)", .*/\1/p' tools/llama_flags.c | tr -d ',')
[ "$(echo "$names" | wc -l)" -ge 30 ] || fail "the table of flags: $names"
for name in $names; do
    grep -q -- "\`$name\`" docs/llama-cpp-users.md || fail "docs/llama-cpp-users.md does not name $name"
done

# Logit biases: of a token that would have been chosen, and of all others.
works run -p 'The old man' -n 1 --temp 0 --kv f16
first=$(cat "$work/out")
works run -p 'The old man' -n 1 --temp 0 --kv f16 --logit-bias 300+100
other=$(cat "$work/out")
[ "$other" != "$first" ] || fail "--logit-bias changes nothing: $other"
works run -p 'The old man' -n 1 --temp 0 --kv f16 -l 300+100 -l 300-inf
[ "$(cat "$work/out")" = "$first" ] || fail "-l twice: $(cat "$work/out")"
for bias in 300 300= x+1 300+ 300+x 300+nan; do
    refuses "--logit-bias takes a token's number and what is added to its logit" run -p x -l "$bias"
done
refuses '--logit-bias 8192+1: the model has tokens 0 to 8191' run -p x -l 8192+1

# JSON, of each reply; a schema that is none is found before the prompt is read.
works run -p 'The old man' -n 30 --temp 0 --kv f16 -j '{"enum": ["yes", "no"]}'
tr -d ' \t\r\n' <"$work/out" | grep -qx '"\(yes\|no\)"' || fail "--json-schema: $(cat "$work/out")"
printf 'Is it?\nIs it not?\n' | "$terse" run -cnv -n 30 --temp 0 --kv f16 --json-schema '{"enum": ["yes", "no"]}' >"$work/out" 2>"$work/err" || fail "-cnv: $(cat "$work/err")"
tr -d ' \t\r\n' <"$work/out" | grep -qx '\("\(yes\|no\)"\)\{2\}' || fail "-cnv --json-schema: $(cat "$work/out")"
works run -p 'The old man' -n 20 --temp 0 --kv f16 -j '{"enum": [1]}' --save-state "$work/state"
refuses 'the JSON schema is no JSON' run -p x -j '{'
refuses '--json-schema and --ignore-eos exclude each other' run -p x -j '{}' --ignore-eos

# Messages between texts of one's own: the model's format, written out, is the same chat.
open='<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n'
close='<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'
printf 'Who is there?\n' | "$terse" run -cnv -n 12 --temp 0 --kv f16 >"$work/plain" 2>"$work/err" || fail "-cnv: $(cat "$work/err")"
printf 'Who is there?\n' | "$terse" run -i -n 12 --temp 0 --kv f16 -e --in-prefix "$open" --in-suffix "$close" >"$work/out" 2>"$work/err" ||
    fail "--in-prefix: $(cat "$work/err")"
cmp "$work/out" "$work/plain" || fail "--in-prefix: $(cat "$work/out")"
refuses '--in-prefix and --in-suffix are for the messages of' run -p x --in-prefix a
refuses 'without a chat format: say with -f what -sys should' run --chat -p x --in-prefix a -sys b
refuses 'without a chat format: omit --chat-template' run --chat -p x --in-suffix a --chat-template chatml

# Another rotation: the file's own base changes nothing, a scale does, and what cannot be is refused.
works run -p 'The old man' -n 8 --temp 0 --kv f16 --rope-freq-base 500000
cmp "$work/out" "$work/greedy" || fail "--rope-freq-base as the file has it: $(cat "$work/out")"
works run -p 'The old man' -n 8 --temp 0 --kv f16 --rope-scaling linear --rope-scale 8
! cmp -s "$work/out" "$work/greedy" || fail "--rope-scale 8 changes nothing"
refuses 'RoPE scaling "longer": use none, linear or yarn' run -p x --rope-scaling longer
refuses '--rope-scale takes a number from 1' run -p x --rope-scale 0.5
refuses '--rope-freq-scale 0.5: say it the other way round: --rope-scale 1/X' run -p x --rope-freq-scale 0.5
refuses 'architecture gpt2 has no RoPE to change' run -m tests/fixtures/models/gpt2.gguf -p x --rope-scale 2
