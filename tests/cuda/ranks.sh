#!/usr/bin/env bash
# ranks.sh TERSE [RANKS]: so many ranks (2), each on a GPU of its own, which exchange by NCCL, write what one GPU writes, whatever the method, and the same in
# every run; they go on from each other's states; what they cannot do together is refused in a line; a rank that is killed ends the others. terse --ranks starts
# them, and mpirun, where it is there; the programs test_cuda_ranks and test_cuda_ranks_prompt run beside TERSE as so many ranks. At last prompts are timed, and
# nothing is asserted of that: MODEL names a GGUF file for it, instead of the built-in model. Exits with 77 where there are not as many GPUs. Run from the
# repository root.
. "$(dirname "$0")/../support/cli.sh"
ranks=${2:-2}
[[ $ranks =~ ^[2-8]$ ]] || fail "$ranks ranks: a number from 2 to 8 is wanted"
[ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge "$ranks" ] || { echo "skipped: no $ranks GPUs" >&2; exit 77; }
head -c 12000 "$text" >"$work/text"
common=(--device cuda)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# launch COMMAND...: stdout and stderr (but for progress) go to $work/out and $work/err, the exit status to $status.
launch() {
    status=0
    timeout 300 "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    drop_progress
}

# many ARGUMENTS: the command over all ranks.
many() { launch "$terse" --ranks "$ranks" "$@"; }

many_work() {
    many "$@"
    [ "$status" -eq 0 ] || fail "$ranks ranks: $*: exit $status: $(cat "$work/err")"
}

# ppl: the perplexity in $work/out.
ppl() { grep -o 'PPL = [0-9.]*' "$work/out" | grep -o '[0-9.]*$'; }

# same_perplexity METHOD [OPTION]: sets $alone and $all, near each other, the second the same in two runs.
same_perplexity() {
    local arguments=(perplexity -f "$text" -c 2048 --chunks 1 --kv $1 ${2:-} "${common[@]}")
    works "${arguments[@]}"
    alone=$(ppl)
    many_work "${arguments[@]}"
    all=$(ppl)
    near "$all" "$alone" 0.01 || fail "$*: perplexity $all with $ranks GPUs, $alone with one"
    many_work "${arguments[@]}"
    [ "$(ppl)" = "$all" ] || fail "$*: perplexity $all, and then $(ppl)"
}

# Attention with every method's kernels, codebooks too; prompts through layers of every kind.
for program in test_cuda_ranks test_cuda_ranks_prompt; do
    python3 "$(dirname "$0")/../support/ranks.py" "$ranks" "$(dirname "$terse")/$program" || fail "$program: exit $?"
done

for method in f16 q8_0 q4_0 'q4_0 --anchors 1%' kivi-4 kivi-2 terse-4 terse-2 terse-1; do
    arguments=(run -f "$work/text" -n 60 --temp 0 --ignore-eos --kv $method "${common[@]}")
    works "${arguments[@]}"
    cp "$work/out" "$work/alone"
    many_work "${arguments[@]}"
    cp "$work/out" "$work/once"
    cmp "$work/out" "$work/alone" || fail "$method: $ranks GPUs write another text than one"
    many_work "${arguments[@]}"
    cmp "$work/out" "$work/once" || fail "$method: $ranks GPUs write another text in the second run"
    same_perplexity "$method"
    echo "$method: the same text; perplexity $alone with one GPU, $all with $ranks"
done
for method in kivi-2 'q4_0 --anchors 1%'; do
    same_perplexity "$method" --paper
    echo "$method --paper: perplexity $alone with one GPU, $all with $ranks"
done

# States are of the same size, the same file in every run, and go on alike with one GPU or several. They need not be the same file as one GPU's, since products
# of a shared prompt have other sizes.
works run -f "$work/text" -n 0 --kv terse-2 "${common[@]}" --save-state "$work/state1"
many_work run -f "$work/text" -n 0 --kv terse-2 "${common[@]}" --save-state "$work/state2"
many_work run -f "$work/text" -n 0 --kv terse-2 "${common[@]}" --save-state "$work/state3"
[ "$(wc -c <"$work/state1")" = "$(wc -c <"$work/state2")" ] || fail "$ranks GPUs save a state of another size than one"
cmp "$work/state2" "$work/state3" || fail "$ranks GPUs save another state in the second run"
cmp -s "$work/state1" "$work/state2" && echo "states: the same file as one GPU's" || echo "states: not one GPU's bits"
works run --state "$work/state1" -p ' and' -n 8 --temp 0 --kv terse-2 "${common[@]}"
cp "$work/out" "$work/alone"
works run --state "$work/state2" -p ' and' -n 8 --temp 0 --kv terse-2 "${common[@]}"
cmp "$work/out" "$work/alone" || fail "one GPU goes on from a state of $ranks with another text"
for state in state1 state2; do
    many_work run --state "$work/$state" -p ' and' -n 8 --temp 0 --kv terse-2 "${common[@]}"
    cmp "$work/out" "$work/alone" || fail "$ranks GPUs go on from $state with another text than one"
done

for method in mat-64 snapkv-128; do
    many run -p 'The old man' -n 2 --kv "$method" "${common[@]}"
    [ "$status" -ne 0 ] && grep -q "$method .*ranks" "$work/err" || fail "$method: exit $status: $(cat "$work/err")"
done

# A rank that is killed ends all.
timeout 120 "$terse" --ranks "$ranks" run -f "$work/text" -n -1 --ignore-eos --temp 0 --kv q8_0 -c 100000 --allow-longer-context "${common[@]}" >"$work/out" 2>"$work/err" </dev/null &
pid=$!
for _ in $(seq 600); do
    [ -s "$work/out" ] && break
    sleep 0.1
done
[ -s "$work/out" ] || fail "$ranks ranks write nothing: $(cat "$work/err")"
main=$(ps -o pid= --ppid "$pid" | sort -n | tail -1) # timeout's child, whose children are the ranks
kill -KILL $(ps -o pid= --ppid "$main" | sort -n | tail -1)
begun=$SECONDS
status=0
wait "$pid" || status=$?
[ "$status" -ne 0 ] && [ $((SECONDS - begun)) -le 10 ] || fail "a killed rank: exit $status after $((SECONDS - begun)) s"
grep -q "rank $((ranks - 1)) of $ranks was ended by signal 9" "$work/err" || fail "a killed rank: $(cat "$work/err")"

# Ranks that mpirun starts write the same.
if ! command -v mpirun >/dev/null; then
    echo "no mpirun: ranks that it starts are not tried"
else
    for method in f16 terse-2; do
        arguments=(run -f "$work/text" -n 60 --temp 0 --ignore-eos --kv "$method" "${common[@]}")
        many_work "${arguments[@]}"
        cp "$work/out" "$work/once"
        launch mpirun -n "$ranks" "$terse" "${arguments[@]}"
        if grep -q 'no libterse-mpi.so' "$work/err"; then
            echo "terse was built without MPI: ranks that mpirun starts are not tried"
            break
        fi
        [ "$status" -eq 0 ] || fail "mpirun: $method: exit $status: $(cat "$work/err")"
        cmp "$work/out" "$work/once" || fail "mpirun: $method: ranks write another text than those of terse --ranks"
        echo "mpirun: $method: the same text"
    done
fi
echo "all as with one GPU"

# speed RANKS METHOD TOKENS: tokens/s of a prompt.
speed() {
    launch "$terse" --ranks "$1" bench ${MODEL:+-m "$MODEL"} --allow-longer-context -p "$3" -n 0 -r 3 --kv "$2" -o csv "${common[@]}"
    [ "$status" -eq 0 ] || fail "bench -p $3: exit $status: $(cat "$work/err")"
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "tokens_per_second") column = i } END { print $column }' "$work/out"
}
for method in f16 terse-2; do
    for tokens in 8192 32768; do
        alone=$(speed 1 "$method" "$tokens")
        all=$(speed "$ranks" "$method" "$tokens")
        awk -v m="$method" -v t="$tokens" -v n="$ranks" -v a="$alone" -v b="$all" \
            'BEGIN { printf "%s, a prompt of %d tokens: %s tokens/s with one GPU, %s with %d, %.2f times\n", m, t, a, b, n, b / a }'
    done
done
