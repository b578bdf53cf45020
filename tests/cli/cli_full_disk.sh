#!/usr/bin/env bash
# A disk that is full after some KiB, here a limit on the size of files: every command that writes a file ends with one line that names it, leaves
# what stood there, and no part behind. LIMITS=N in the environment tries N sizes of each.
. "$(dirname "$0")/../support/cli.sh"
model=tests/fixtures/models/llama.gguf
ends=0

# full FILE ARGUMENTS: writes FILE whole, then again with sizes that do not suffice.
full() {
    local file=$1 size limit i
    shift
    works "$@"
    cp "$file" "$work/whole"
    size=$(($(wc -c <"$file") / 1024)) # whole KiB do not suffice, or just
    for ((i = 0; i < ${LIMITS:-6}; i++)); do
        limit=$((1 + size * i / ${LIMITS:-6})) # messages go to files, too
        status=0
        (trap '' XFSZ && ulimit -f $limit && exec "$terse" "$@") >"$work/out" 2>"$work/err" </dev/null || status=$?
        drop_progress
        [ "$status" -eq 1 ] || fail "terse $*: exit $status with a disk of $limit KiB: $(cat "$work/err")"
        [ "$(grep -c "$file.*cannot be written\|cannot write $file" "$work/err")" -eq 1 ] || fail "terse $*: a disk of $limit KiB: $(cat "$work/err")"
        cmp -s "$file" "$work/whole" || fail "terse $*: a disk of $limit KiB changed the file that was there"
        [ "$(ls "$work" | grep -c '\.part\|\.tmp')" -eq 0 ] || fail "terse $*: a part was left: $(ls "$work")"
        ends=$((ends + 1))
    done
}

full "$work/state" run -p 'The old man went to the' -n 2 --temp 0 --kv q4_0 --save-state "$work/state"
full "$work/book" calibrate -m $model -f $text -c 100 --chunks 4 --kv cq-4 -o "$work/book"
full "$work/base" perplexity -m $model -f $text -c 64 --chunks 1 --kl-divergence-base "$work/base"
echo "$ends times a full disk"
