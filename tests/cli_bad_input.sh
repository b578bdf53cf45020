#!/usr/bin/env bash
# Input that is missing, no text or no model, a context that is too long, and output that cannot be written.
. "$(dirname "$0")/support/cli.sh"

refuses 'cannot open .*missing: No such file' run -f "$work/missing"
refuses 'cannot read .*: Is a directory' run -f "$work"
refuses 'missing.gguf' run -m "$work/missing.gguf" -p x
refuses 'cannot open' perplexity -f "$work/missing"
: >"$work/empty"
refuses 'too few' perplexity -f "$work/empty" -c 64
refuses 'README.md' run -m README.md -p x
head -c 100000 models/lab-27m-q8_0.gguf >"$work/cut.gguf"
refuses 'cut.gguf' run -m "$work/cut.gguf" -p x
refuses '' run -m /dev/null -p x

# Not text: the first byte that says so.
printf 'four\0more' >"$work/nul"
refuses 'is not text: a NUL byte at offset 4' run -f "$work/nul"
for bytes in '\x80' '\xc3' '\xc3(' '\xc0\xaf' '\xed\xa0\x80' '\xf4\x90\x80\x80' '\xe2\x82' '\xff'; do
    printf "abc${bytes}" >"$work/bytes"
    refuses 'is not text: bytes that are not UTF-8 at offset 3' run -f "$work/bytes"
done
refuses 'is not text' perplexity -f models/lab-27m-q8_0.gguf
printf 'na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80' >"$work/utf8"
works run -f "$work/utf8" -n 1

# Too long: refused, with the way out.
refuses '--allow-longer-context' run -p x -c 40000
refuses 'raise -c' run -f "$text" -c 1000
works run -p x -c 40000 --allow-longer-context -n 1
works run -p x -c 40000 --kv streaming-100 -n 1

# Output that cannot be written.
for arguments in 'run -p x -n 4' "perplexity -f $text -c 64 --chunks 1" 'inspect' '--help' 'run --help' 'bench -p 1 -n 0 -r 1'; do
    status=0
    # Word splitting is meant.
    # shellcheck disable=SC2086
    "$terse" $arguments >/dev/full 2>"$work/err" || status=$?
    drop_progress
    [ "$status" -eq 1 ] || fail "$arguments: exit $status with a full disk"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$arguments: full disk: $(cat "$work/err")"
    grep -q 'cannot write to standard output: No space left' "$work/err" || fail "$arguments: full disk: $(cat "$work/err")"
done
{
    status=0
    "$terse" run -p x -n 200 --kv streaming-64 2>"$work/err" || status=$?
    echo $status >"$work/status"
} | head -c 1 >/dev/null
[ "$(cat "$work/status")" -eq 1 ] || fail "closed pipe: exit $(cat "$work/status")"
grep -q 'cannot write to standard output: Broken pipe' "$work/err" || fail "closed pipe: $(cat "$work/err")"
