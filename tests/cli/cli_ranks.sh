#!/usr/bin/env bash
# terse under mpirun of Open MPI or MPICH, or what else $MPIEXEC names ("srun --overcommit --mpi=pmix"): several ranks write what one process writes,
# once; what they cannot do together is refused in a line; a rank that is killed ends the others.
. "$(dirname "$0")/../support/cli.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none # containers forbid the other one
export OMPI_MCA_rmaps_base_oversubscribe=1
export CLI_RANKS=$work # marks the processes of this test
read -ra mpiexec <<<"${MPIEXEC:-mpirun}"
head -c 1800 "$text" >"$work/text"

# launch N COMMAND...: stdout and stderr (but for progress and the launcher's own lines) go to $work/out and $work/err, the exit status to $status.
launch() {
    local n=$1
    shift
    status=0
    timeout 120 "${mpiexec[@]}" -n "$n" "$@" >"$work/out" 2>"$work/all" </dev/null || status=$?
    drop_launcher
    drop_progress
    # srun reports how it has ended a rank, not what the rank returned that made it do so.
    [ "${mpiexec[0]}" != srun ] || [ "$status" -ne 137 ] || status=1
}

# Takes out what mpirun (boxes of --- or ===), the libraries and srun write by themselves.
drop_launcher() {
    sed -E '/^---/,/^---/d; /^===/,/^===/d; /^(srun|slurmstepd[^:]*): |^Abort\(|^YOUR APPLICATION TERMINATED|^This typically refers/d' "$work/all" >"$work/err"
}

# ranks N ARGUMENTS: the command, launched.
ranks() { launch "$1" "$terse" "${@:2}"; }

# same N ARGUMENTS: N ranks write the text that one process writes, and a summary.
same() {
    local n=$1
    shift
    works "$@"
    cp "$work/out" "$work/alone"
    ranks "$n" "$@"
    [ "$status" -eq 0 ] || fail "$n ranks: $*: exit $status: $(cat "$work/all")"
    cmp "$work/out" "$work/alone" || fail "$n ranks: $*: another text than that of one process"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$n ranks: $*: more than the summary: $(cat "$work/err")"
}
same 2 run -f "$work/text" -n 12 --temp 0 -t 1 --kv q8_0
same 3 run -f "$work/text" -n 12 --temp 0 -t 1 --kv f16
SLURM_PROCID=0 PMI_RANK=0 same 3 run -f "$work/text" -n 12 --temp 0 -t 1 --kv f16 # as under srun --mpi=pmi2, where they look after each other

# rank_refuses PATTERN ARGUMENTS
rank_refuses() {
    local pattern=$1
    shift
    ranks 2 "$@"
    [ "$status" -eq 1 ] || fail "2 ranks: $*: exit $status: $(cat "$work/all")"
    [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q -- "$pattern" "$work/err" || fail "2 ranks: $*: $(cat "$work/all")"
    [ ! -s "$work/out" ] || fail "2 ranks: $*: results after a refusal: $(cat "$work/out")"
}
rank_refuses 'mat-64 evicts tokens' run -p 'The old man' -n 2 --kv mat-64
rank_refuses 'is one of 2 ranks already' --ranks 2 run -p a
rank_refuses 'terse calibrate: 2 ranks cannot' calibrate -f "$work/text" -o "$work/codebook.gguf"

# A launcher that MPI does not know would start processes that are each alone, and take themselves for ranks.
PMI_RANK=0 PMI_SIZE=2 refuses '2 ranks were started, and MPI knows of 1' run -p a -n 2

# Standard input is rank 0's.
works run -f "$work/text" -n 8 --temp 0 -t 1 --kv q8_0
cp "$work/out" "$work/alone"
timeout 120 "${mpiexec[@]}" -n 2 "$terse" run -f - -n 8 --temp 0 -t 1 --kv q8_0 <"$work/text" >"$work/out" 2>"$work/all" || fail "standard input: $(cat "$work/all")"
cmp "$work/out" "$work/alone" || fail "standard input: another text than that of one process"
printf 'Hello\nAnd now?\n' | timeout 120 "${mpiexec[@]}" -n 2 "$terse" run -cnv -n 4 --temp 0 -t 1 --kv q8_0 >"$work/out" 2>"$work/all" || fail "-cnv: $(cat "$work/all")"
[ -s "$work/out" ] || fail "-cnv: no replies: $(cat "$work/all")"

# A state is the same whoever saves it, and any number of ranks goes on with it.
works run -f "$work/text" -n 0 -t 1 --kv terse-2 --save-state "$work/state1"
works run --state "$work/state1" -p ' and' -n 8 --temp 0 -t 1 --kv terse-2
cp "$work/out" "$work/alone"
ranks 3 run -f "$work/text" -n 0 -t 1 --kv terse-2 --save-state "$work/state3"
[ "$status" -eq 0 ] && cmp "$work/state1" "$work/state3" || fail "--save-state: exit $status: $(cat "$work/all")"
ranks 2 run --state "$work/state3" -p ' and' -n 8 --temp 0 -t 1 --kv terse-2
[ "$status" -eq 0 ] && cmp "$work/out" "$work/alone" || fail "--state: exit $status: $(cat "$work/out" "$work/all")"

# Perplexity is that of one process, where its windows are read before a page is sealed.
works perplexity -f "$text" -c 256 --chunks 2 -t 1 --kv terse-2
cp "$work/out" "$work/alone"
for n in 2 3; do
    ranks $n perplexity -f "$text" -c 256 --chunks 2 -t 1 --kv terse-2
    [ "$status" -eq 0 ] && cmp "$work/out" "$work/alone" || fail "perplexity, $n ranks: exit $status: $(cat "$work/out" "$work/all")"
done

# The table of a measurement is printed once, with the shares of rank 0.
ranks 2 bench --kv q8_0,terse-4 -p 64 -n 4 -r 1 -d 1024 -t 1
[ "$status" -eq 0 ] && [ "$(grep -c '^| q8_0 .*tg4 @ d1024' "$work/out")" -eq 1 ] || fail "bench: exit $status: $(cat "$work/out" "$work/all")"

# One that fails alone says which it is, once, and ends all. The ranks differ by a script.
cat >"$work/unlike" <<END
#!/bin/sh
rank=\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-\$PMIX_RANK}}
case \$1\$rank in
missing1) exec "$terse" run -m "$work/missing.gguf" -p a -n 2 ;;
scalar1) TERSE_CPU=scalar exec "$terse" run -p a -n 2 ;;
*) exec "$terse" run -p a -n 2 ;;
esac
END
chmod +x "$work/unlike"
launch 2 "$work/unlike" missing
[ "$status" -eq 1 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '^terse run: rank 1: .*missing.gguf' "$work/err" || fail "rank 1 fails alone: exit $status: $(cat "$work/all")"

# Ranks of other kernels, which would exchange otherwise, are refused.
launch 2 "$work/unlike" scalar
[ "$status" -eq 1 ] && grep -q 'rank 1 computes with kernels for scalar' "$work/all" || fail "other kernels: exit $status: $(cat "$work/all")"

# A rank that is killed ends all, without what it would have written.
rm "$work/out"
"${mpiexec[@]}" -n 3 "$terse" run -f "$work/text" -n -1 --ignore-eos --temp 0 -t 1 --kv q8_0 -c 8192 --allow-longer-context \
    >"$work/out" 2>"$work/all" </dev/null &
pid=$!
for _ in $(seq 600); do
    [ -s "$work/out" ] && break
    sleep 0.1
done
victim=
for process in $(grep -lzaFx "CLI_RANKS=$work" /proc/[0-9]*/environ 2>/dev/null); do
    ! grep -qzaEx '(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=2' "$process" || victim=$(basename "$(dirname "$process")")
done
[ -n "$victim" ] || fail "there is no rank 2: $(cat "$work/all")"
kill -KILL "$victim"
begun=$SECONDS
status=0
wait "$pid" || status=$?
[ "$status" -ne 0 ] && [ $((SECONDS - begun)) -le 10 ] || fail "exit $status $((SECONDS - begun)) s after a rank was killed"
[ "$(grep -cE 'exited on signal 9|EXIT CODE: 9|task 2: Killed' <(cat "$work/out" "$work/all"))" -eq 1 ] || fail "a killed rank: $(cat "$work/all")"
drop_launcher
# Ranks of srun --mpi=pmi2, which ends none of them, say themselves that one is gone.
[ "$(grep -vcE '^prompt: |^terse run: rank 0 of 3: .*rank 2 has ended$' "$work/err")" -eq 0 ] || fail "more than the launcher's lines: $(cat "$work/all")"
