#!/usr/bin/env bash
# ranks.sh TERSE [LAUNCHER...]: test_cuda_ranks beside it, as two processes, and ranks on two GPUs, which exchange by NCCL, write what one GPU writes, whatever the method, and the same in every run;
# states are the same file; what they cannot do together is refused in a line; a rank that is killed ends the others. LAUNCHER starts two ranks of the
# command behind it; without one, terse --ranks 2 does. Exits with 77 where there are no two GPUs. Run from the repository root.
. "$(dirname "$0")/../support/cli.sh"
shift
[ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ] || { echo "skipped: no two GPUs" >&2; exit 77; }
head -c 12000 "$text" >"$work/text"
common=(--device cuda)

# two ARGUMENTS: stdout and stderr go to $work/out and $work/err, the exit status to $status.
launcher=("$@")
two() {
    local command=("$terse" --ranks 2 "$@")
    [ ${#launcher[@]} = 0 ] || command=("${launcher[@]}" "$terse" "$@")
    status=0
    timeout 300 "${command[@]}" >"$work/out" 2>"$work/err" </dev/null || status=$?
    drop_progress
}

two_work() {
    two "$@"
    [ "$status" -eq 0 ] || fail "two ranks: $*: exit $status: $(cat "$work/err")"
}

# ppl: the perplexity in $work/out.
ppl() { grep -o 'PPL = [0-9.]*' "$work/out" | grep -o '[0-9.]*$'; }

# Attention with every method's kernels, codebooks too.
status=0
python3 "$(dirname "$0")/../support/ranks.py" 2 "$(dirname "$terse")/test_cuda_ranks" || status=$?
[ $status = 0 ] || fail "test_cuda_ranks: exit $status"

for method in f16 q8_0 q4_0 kivi-4 kivi-2 terse-4 terse-2 terse-1; do
    arguments=(run -f "$work/text" -n 60 --temp 0 --ignore-eos --kv "$method" "${common[@]}")
    works "${arguments[@]}"
    cp "$work/out" "$work/alone"
    two_work "${arguments[@]}"
    cp "$work/out" "$work/once"
    cmp "$work/out" "$work/alone" || fail "$method: two GPUs write another text than one"
    two_work "${arguments[@]}"
    cmp "$work/out" "$work/once" || fail "$method: two GPUs write another text in the second run"
    arguments=(perplexity -f "$text" -c 2048 --chunks 1 --kv "$method" "${common[@]}")
    works "${arguments[@]}"
    alone=$(ppl)
    two_work "${arguments[@]}"
    both=$(ppl)
    awk -v a="$alone" -v b="$both" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (0.01 * a) ^ 2) }' || fail "$method: perplexity $both with two GPUs, $alone with one"
    two_work "${arguments[@]}"
    [ "$(ppl)" = "$both" ] || fail "$method: perplexity $both, and then $(ppl)"
    echo "$method: the same text; perplexity $alone with one GPU, $both with two"
done

# A state is the same file, and goes on with one GPU or two.
works run -f "$work/text" -n 0 --kv terse-2 "${common[@]}" --save-state "$work/state1"
two_work run -f "$work/text" -n 0 --kv terse-2 "${common[@]}" --save-state "$work/state2"
cmp "$work/state1" "$work/state2" || fail "two GPUs save another state than one"
works run --state "$work/state2" -p ' and' -n 8 --temp 0 --kv terse-2 "${common[@]}"
cp "$work/out" "$work/alone"
two_work run --state "$work/state1" -p ' and' -n 8 --temp 0 --kv terse-2 "${common[@]}"
cmp "$work/out" "$work/alone" || fail "two GPUs go on from a state with another text than one"

for method in mat-64 snapkv-128 'q4_0 --anchors 1%'; do
    two run -p 'The old man' -n 2 --kv $method "${common[@]}"
    [ "$status" -ne 0 ] && grep -q "${method%% *} .*ranks" "$work/err" || fail "$method: exit $status: $(cat "$work/err")"
done

# A rank that is killed ends all.
timeout 120 "$terse" --ranks 2 run -f "$work/text" -n -1 --ignore-eos --temp 0 --kv q8_0 -c 100000 --allow-longer-context "${common[@]}" >"$work/out" 2>"$work/err" </dev/null &
pid=$!
for _ in $(seq 600); do
    [ -s "$work/out" ] && break
    sleep 0.1
done
[ -s "$work/out" ] || fail "two ranks write nothing: $(cat "$work/err")"
main=$(ps -o pid= --ppid "$pid" | sort -n | tail -1) # timeout's child, whose children are the ranks
kill -KILL $(ps -o pid= --ppid "$main" | sort -n | tail -1)
begun=$SECONDS
status=0
wait "$pid" || status=$?
[ "$status" -ne 0 ] && [ $((SECONDS - begun)) -le 10 ] || fail "a killed rank: exit $status after $((SECONDS - begun)) s"
grep -q 'rank 1 of 2 was ended by signal 9' "$work/err" || fail "a killed rank: $(cat "$work/err")"
echo "all as with one GPU"
