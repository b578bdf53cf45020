#!/usr/bin/env bash
# terse --ranks: several processes of one machine, without MPI, write what one writes, once; a refusal is one line; one that is killed ends the others.
. "$(dirname "$0")/../support/cli.sh"
head -c 1800 "$text" >"$work/text"

# ranks N ARGUMENTS: stdout and stderr (but for progress) go to $work/out and $work/err, the exit status to $status.
ranks() {
    local n=$1
    shift
    status=0
    timeout 120 "$terse" --ranks "$n" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    drop_progress
}

works run -f "$work/text" -n 12 --temp 0 -t 1 --kv q8_0
cp "$work/out" "$work/alone"
for n in 1 2 3; do
    ranks "$n" run -f "$work/text" -n 12 --temp 0 -t 1 --kv q8_0
    [ "$status" -eq 0 ] || fail "$n ranks: exit $status: $(cat "$work/err")"
    cmp "$work/out" "$work/alone" || fail "$n ranks: another text than that of one process"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$n ranks: more than the summary: $(cat "$work/err")"
done

# Ranks divide the processors on which they may run, unless -t says otherwise.
threads_of() {
    ranks "$@"
    [ "$status" -eq 0 ] || fail "--ranks $*: exit $status: $(cat "$work/err")"
    sed -n 's/.*[,;] \([0-9]*\) threads.*/\1/p' "$work/out"
}
processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
for n in 1 3; do
    share=$((processors / n > 0 ? processors / n : 1))
    threads=$(threads_of "$n" bench -p 0 -n 1 -r 1 --kv q8_0)
    [ "$threads" = "$share" ] || fail "$n ranks on $processors processors have '$threads' threads each"
done
[ "$(threads_of 2 bench -p 0 -n 1 -r 1 --kv q8_0 -t 3)" = 3 ] || fail "-t 3: another number of threads"

# Standard input is rank 0's.
timeout 120 "$terse" --ranks 2 run -f - -n 12 --temp 0 -t 1 --kv q8_0 <"$work/text" >"$work/out" 2>"$work/err" || fail "standard input: $(cat "$work/err")"
cmp "$work/out" "$work/alone" || fail "standard input: another text than that of one process"

# A text that terse-2 fits itself to is fitted by all of them, each a part, to the bits of one process.
head -c 4000 "$text" >"$work/long" # some 3,800 tokens of this model
fitted=(run -m tests/fixtures/models/llama.gguf -c 4096 --allow-longer-context -f "$work/long" -n 0 -t 1 --kv terse-2)
works "${fitted[@]}" --save-state "$work/state1"
for n in 2 3; do
    ranks "$n" "${fitted[@]}" --save-state "$work/state"
    [ "$status" -eq 0 ] && cmp "$work/state" "$work/state1" || fail "$n ranks fit something else than one process: exit $status: $(cat "$work/err")"
done

# refuses PATTERN N ARGUMENTS
rank_refuses() {
    local pattern=$1
    shift
    ranks "$@"
    [ "$status" -eq 1 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q -- "$pattern" "$work/err" || fail "--ranks $*: exit $status: $(cat "$work/err")"
}
rank_refuses 'mat-64 evicts tokens' 2 run -p 'The old man' -n 2 --kv mat-64
rank_refuses 'terse calibrate: 2 ranks cannot' 2 calibrate -f "$work/text" -o "$work/codebook.gguf"
rank_refuses 'must be a number of processes' 0 run -p a
rank_refuses 'must be a number of processes' 2x run -p a

# A rank that is killed ends all, with a line that names it.
"$terse" --ranks 3 run -f "$work/text" -n -1 --ignore-eos --temp 0 -t 1 --kv q8_0 -c 8192 --allow-longer-context >"$work/out" 2>"$work/err" </dev/null &
pid=$!
for _ in $(seq 600); do
    [ -s "$work/out" ] && break
    sleep 0.1
done
[ -s "$work/out" ] || fail "three ranks write nothing: $(cat "$work/err")"
other=$(ps -o pid= --ppid "$pid" | sort -n | tail -1)
kill -KILL $other
status=0
wait "$pid" || status=$?
drop_progress
[ "$status" -eq 1 ] && [ "$(cat "$work/err")" = 'terse: rank 2 of 3 was ended by signal 9' ] || fail "a killed rank: exit $status: $(cat "$work/err")"
