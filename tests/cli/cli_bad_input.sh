#!/usr/bin/env bash
# Input that is missing, no text or no model, a context that is too long, too little memory, and output that cannot be written.
. "$(dirname "$0")/../support/cli.sh"

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
    refuses 'is not text: bytes that are not UTF-8 at offset 3; if it is Latin-1 text, iconv -f LATIN1 -t UTF-8 .*bytes makes' run -f "$work/bytes"
    refuses '-p is not text: bytes that are not UTF-8 at offset 3' run -p "$(cat "$work/bytes")"
done
printf '\xff\xfea\0b\0' >"$work/bytes"
refuses 'at offset 0; if it is UTF-16 text, iconv -f UTF-16 -t UTF-8 .*bytes makes UTF-8 of it' run -f "$work/bytes"
# The same for the lines of a conversation: bytes behind a NUL are not dropped in silence.
for bytes in 'a NUL byte:a\0b' 'a NUL byte:/exit\0b' 'bytes that are not UTF-8:a\xff'; do
    status=0
    printf "\n${bytes#*:}\n" | "$terse" run -cnv -n 1 >"$work/out" 2>"$work/err" || status=$?
    drop_progress
    [ "$status" -eq 1 ] && [ ! -s "$work/out" ] || fail "-cnv reads $bytes: exit $status: $(cat "$work/err")"
    grep -q "line 2 of standard input is not text: ${bytes%:*} at offset" "$work/err" || fail "-cnv: $bytes: $(cat "$work/err")"
done
refuses 'is not text' perplexity -f models/lab-27m-q8_0.gguf
printf 'na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80' >"$work/utf8"
works run -f "$work/utf8" -n 1

# A weight that is no number: the scale of some block. No command prints what comes of it.
cp models/lab-27m-q8_0.gguf "$work/damaged.gguf"
chmod u+w "$work/damaged.gguf"
printf '\377%.0s' {1..40} | dd of="$work/damaged.gguf" bs=1 seek=$(($(stat -c %s "$work/damaged.gguf") - 4096)) conv=notrunc status=none
for arguments in "run -p x -n 2" "perplexity -f $text -c 64 --chunks 1" 'bench -p 8 -n 4 -r 1 --kv f16' \
    "calibrate -f $text --kv cq-1 -c 64 --chunks 2 -o $work/damaged.codebook"; do
    # Word splitting is meant.
    refuses 'not finite.*fetch it again' ${arguments%% *} -m "$work/damaged.gguf" ${arguments#* }
done
[ ! -e "$work/damaged.codebook" ] || fail "a codebook of a damaged model was written"

# Too long: refused, with the way out.
refuses '--allow-longer-context' run -p x -c 40000
refuses 'raise -c' run -f "$text" -c 1000
works run -p x -c 40000 --allow-longer-context -n 1
refuses '--allow-longer-context' run -p x -c 40000 --kv streaming-100
refuses 'raise -c' run -p x -c 1000 --kv streaming-1000
refuses '--paper' perplexity -f "$text" -c 64 --paper --kv streaming-32

# Too little memory: an exit, never a signal, and one line that says so. The least of these limits is too low for the model and the highest is enough.
# Sanitizers need more address space than any limit here.
if (ulimit -v 600000 && "$terse" --version) >"$work/out" 2>&1; then
    head -c 3000 "$text" >"$work/short"
    for limit in 150000 250000 320000 340000 360000 400000; do
        status=0
        (ulimit -v $limit && exec "$terse" run -f "$work/short" -n 2 -t 2) >"$work/out" 2>"$work/err" </dev/null || status=$?
        drop_progress
        [ "$status" -le 1 ] || fail "exit $status with $limit kB of memory: $(cat "$work/err")"
        # libgomp ends the program itself when it cannot start a thread.
        [ "$status" -eq 0 ] || grep -q 'libgomp: Thread creation failed' "$work/err" || [ "$(wc -l <"$work/err")" -eq 1 ] ||
            fail "more or less than one line with $limit kB of memory: $(cat "$work/err")"
    done
fi

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
[ "$(cat "$work/status")" -eq 141 ] || fail "closed pipe: exit $(cat "$work/status")"
[ ! -s "$work/err" ] || fail "closed pipe: not quiet: $(cat "$work/err")"

# Text without end, or too much of it, is refused before it fills the memory.
refuses '/dev/zero is not text: a NUL byte at offset 0' run -f /dev/zero -n 1
refuses '/dev/urandom is not text' run -f /dev/urandom -n 1
status=0
{ yes 'without end' || true; } | "$terse" run -n 1 >"$work/out" 2>"$work/err" || status=$?
[ "$status" -eq 1 ] && grep -q 'standard input is longer than 256 MiB: give a part of it' "$work/err" || fail "a pipe without end: $(cat "$work/err")"
refuses '/dev/null is empty: nothing to read' run -f /dev/null

# SIGTERM ends a command as it ends others.
"$terse" run >"$work/out" 2>"$work/err" < <(sleep 20) & # it waits for its text
sleep 1
kill $! 2>/dev/null || fail "the command ended before it was to be ended: $(cat "$work/err")"
status=0
wait $! || status=$?
[ "$status" -eq 143 ] || fail "SIGTERM: exit $status"
