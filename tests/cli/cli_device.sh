#!/usr/bin/env bash
# terse run on a device: what is asked for and not there is refused in one line, or replaced with one, never in silence.
. "$(dirname "$0")/../support/cli.sh"
export TERSE_PLUGIN_PATH=$work # no plug-ins there

refuses 'make CUDA=1' run -p hello -n 2 --device cuda
works --version
grep -q '^backends: cpu$' "$work/out" || fail "--version: $(cat "$work/out")"
grep -q '^not cuda: .*make CUDA=1' "$work/out" || fail "--version does not say why there is no cuda: $(cat "$work/out")"
works run -p hello -n 2 -ngl 99
grep -q '^-ngl 99: the processor computes, as there is no GPU for it: .*make CUDA=1' "$work/err" || fail "-ngl 99: $(cat "$work/err")"
refuses 'computed on one device' run -p hello -n 2 -ngl 5
refuses '--device' run -p hello -n 2 --device tpu
refuses '-ngl' run -p hello -n 2 -ngl all

echo 'no object' >"$work/libterse-cuda.so"
refuses 'cannot be opened' run -p hello -n 2 --device cuda
works --version
grep -q '^not cuda: .*cannot be opened' "$work/out" || fail "--version: $(cat "$work/out")"
rm "$work/libterse-cuda.so"

refuses 'make CUDA=1' calibrate --kv cq-2 --device cuda
refuses 'computed on one device' calibrate --kv cq-2 -ngl 5
works calibrate -ngl 99 --kv cq-2 --chunks 1 -o "$work/book.gguf"
grep -q '^the processor learns: .*libterse-cuda' "$work/err" || fail "calibrate -ngl 99 learns on the processor in silence: $(cat "$work/err")"
refuses 'make CUDA=1' inspect --device cuda -o csv
works inspect --device auto -o csv
cp "$work/out" "$work/auto"
works inspect -o csv
cmp "$work/auto" "$work/out" || fail "inspect --device auto tells other bytes than the processor's"

for options in '--device cpu' '-ngl 0' '--device auto'; do
    works run -p hello -n 2 --temp 0 $options
    [ -s "$work/out" ] || fail "run $options wrote nothing"
done
