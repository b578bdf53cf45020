#!/usr/bin/env bash
# terse run in the chat format: the model finds a needle in about 2,000 tokens, and a conversation keeps its cache.
. "$(dirname "$0")/../support/cli.sh"

# plant BYTES FILE: so much of the text, with a line planted in its middle.
plant() {
    head -c "$1" "$text" >"$work/hay"
    awk -v needle='The access code for the merry lantern is 4071826.' -v at="$(($(wc -l <"$work/hay") / 2))" \
        '{ print } NR == at { print needle }' "$work/hay" >"$2"
}
plant 7000 "$work/planted"
question='What is the access code for the merry lantern?'
answer='The access code for the merry lantern is 4071826.'

for kv in f16 q8_0; do
    works run --chat -f "$work/planted" -p "$question" --temp 0 --kv $kv
    [ "$(cat "$work/out")" = "$answer" ] || fail "$kv: the answer is $(cat "$work/out")"
    [ "$(number_after '^prompt ' "$work/err")" -gt 1500 ] || fail "the text was not read: $(cat "$work/err")"
done

# The chat form is the format of the model's card, spelled out. Here and below a third of the text does.
plant 2300 "$work/planted"
printf '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n%s\n\n%s<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n' \
    "$(cat "$work/planted")" "$question" >"$work/spelled"
works run -f "$work/spelled" -p '' --temp 0 -n 1
tokens=$(number_after '^prompt ' "$work/err")
printf '%s' "$(cat "$work/spelled")" >"$work/spelled.trimmed"
works run --chat -f "$work/planted" -p "$question" --temp 0 -n 1
near "$(number_after '^prompt ' "$work/err")" "$tokens" 0.002 || fail "--chat reads $(cat "$work/err"), spelled out it is $tokens tokens"

# A conversation: the second question is answered from what the first message said, and only new tokens are read.
printf '%s\n%s\n/exit\nnever read\n' "$question" "$question" |
    "$terse" run -cnv -f "$work/planted" --temp 0 >"$work/out" 2>"$work/err" || fail "-cnv: $(cat "$work/err")"
[ "$(cat "$work/out")" = "$answer
$answer" ] || fail "-cnv: the answers are $(cat "$work/out")"
read_twice=$(number_after '^prompt ' "$work/err")
[ "$read_twice" -lt $((tokens + 60)) ] || fail "-cnv read $read_twice tokens, of which the text is $tokens: the cache was not kept"
printf '%s' "$question" | "$terse" run -cnv -f "$work/planted" --temp 0 >"$work/out" 2>"$work/err" || fail "-cnv at end of input"
[ "$(cat "$work/out")" = "$answer" ] || fail "-cnv without a last newline: $(cat "$work/out")"

# A message that no longer fits ends the conversation, with one remark and the summary.
long=$(printf 'and then %.0s' $(seq 60))
printf 'Hello\n%s\nnever read\n' "$long" | "$terse" run -cnv -c 96 -n 4 >"$work/out" 2>"$work/err" || fail "-cnv, full: $(cat "$work/err")"
drop_progress
[ "$(wc -l <"$work/err")" -eq 3 ] || fail "-cnv, full: $(cat "$work/err")" # the first says what the built-in model is for
grep -q '^stopped: the conversation no longer fits: .*raise -c' "$work/err" || fail "-cnv, full: $(cat "$work/err")"
grep -q '^prompt [0-9]* tokens' "$work/err" || fail "-cnv, full: no summary: $(cat "$work/err")"
printf '' | "$terse" run -cnv -c 96 -p "$long" >"$work/out" 2>"$work/err" && fail "-cnv, full at once: exit 0"
grep -q 'raise -c' "$work/err" || fail "-cnv, full at once: $(cat "$work/err")"

# Messages of several lines; ends of lines from elsewhere.
works run --chat -p $'Who is there?\nWhat is that?' -n 12 --temp 0 --kv f16
cp "$work/out" "$work/together"
printf 'Who is there?\\\r\nWhat is that?\r\n \n/exit \t\r\nnever read\n' |
    "$terse" run -cnv -n 12 --temp 0 --kv f16 >"$work/out" 2>"$work/err" || fail "-cnv, two lines: $(cat "$work/err")"
cmp "$work/out" "$work/together" || fail "-cnv, two lines: $(cat "$work/out")"

# A line that is neither a message nor a command is refused with one line of error, the next one is answered, and the exit status is 1.
for bad in 'a\xff' 'a\xff\\\nb' '/foo' '/kv 1' '/save' '/load /nowhere/state' '/regen'; do
    status=0
    printf "$bad\nWho is there?\\\nWhat is that?\n/quit\n" |
        "$terse" run -cnv -n 12 --temp 0 --kv f16 >"$work/out" 2>"$work/err" || status=$?
    drop_progress
    [ "$status" -eq 1 ] && cmp "$work/out" "$work/together" || fail "-cnv reads $bad: exit $status, $(cat "$work/out" "$work/err")"
    [ "$(grep -c '^terse run: ' "$work/err")" -eq 1 ] && grep -q '^prompt ' "$work/err" || fail "-cnv reads $bad: $(cat "$work/err")"
done
printf '/usr/bin is a folder\n' | "$terse" run -cnv -n 1 >"$work/out" 2>"$work/err" || fail "a message that begins with a path: $(cat "$work/err")"

# Other formats by name; the lab model does not know them, but they are read.
works run --chat -p Hello --chat-template chatml -n 2
work_template=$(mktemp)
printf '%s' "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>'}}" >"$work_template"
works run --chat -p Hello --chat-template-file "$work_template" -n 2
rm -f "$work_template"

# A model for chats that ends a plain text at once: a hint instead of nothing. Tokens 1 and 4 end texts here.
works run -p 'What is the capital of France?' --temp 0 --kv f16 -l 4+1000
[ ! -s "$work/out" ] || fail "text behind the end: $(cat "$work/out")"
grep -q '^the model ended the text at once: it is made for chats; --chat asks it' "$work/err" || fail "no hint: $(cat "$work/err")"
for options in '-n 0' '--ignore-eos -n 1' '--chat'; do
    # shellcheck disable=SC2086
    works run -p 'What is the capital of France?' --temp 0 --kv f16 -l 4+1000 $options
    ! grep -q 'made for chats' "$work/err" || fail "$options: $(cat "$work/err")"
done
