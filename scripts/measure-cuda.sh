#!/usr/bin/env bash
# measure-cuda.sh DIRECTORY [PART...]: the figures of docs/cuda.md on this machine's GPU, by the programs in DIRECTORY (build-cuda/bin, or carried from
# there), which holds libterse-cuda.so or has it where TERSE_PLUGIN_PATH says. Parts: attention weights encoding steps batches sealing; without any,
# all of them. PyTorch serves part attention, where it is there.
#
# MODEL: a GGUF for whole steps; without it one of an 8B shape with random Q4_K weights is made in /dev/shm. LIMIT: seconds of one command (300).
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ $# -lt 1 ] || [ ! -d "$1" ]; then
    echo "usage: scripts/measure-cuda.sh DIRECTORY [PART...]" >&2
    exit 1
fi
programs=$1
shift
parts=${*:-attention weights encoding steps batches sealing}
limit=${LIMIT:-300}
model=${MODEL:-/dev/shm/terse-8b-q4_k.gguf}
common="--device cuda --no-auto-calibrate --allow-longer-context -r 1"
failed=0

# COMMAND...: says it, runs it.
measure() {
    echo "\$ ${*#"$programs"/}"
    timeout "$limit" "$@" || { echo "measure-cuda.sh: it failed ($?): $*" >&2; failed=1; }
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for part in $parts; do
    echo "== $part"
    case $part in steps | batches | sealing)
        [ -f "$model" ] || measure "$programs/make_model" 8b q4_k "$model"
        ;;
    esac
    case $part in
    attention)
        if env -u LD_LIBRARY_PATH python3 -c "import torch" 2>/dev/null; then
            echo "$ bench_attend_cuda | f16_attention.py"
            timeout "$limit" "$programs/bench_attend_cuda" | env -u LD_LIBRARY_PATH python3 "$here/bench/cuda/f16_attention.py" || failed=1
        else
            measure "$programs/bench_attend_cuda"
        fi
        ;;
    weights) measure "$programs/bench_weights_cuda" ;;
    encoding) measure "$programs/bench_encode_cuda" ;;
    steps)
        measure "$programs/terse" bench -m "$model" $common -p 8192 -n 64 --kv f16
        measure "$programs/terse" bench -m "$model" $common -p 0 -n 128 -d 32768,131072 --kv f16,q4_0,terse-4,terse-2,terse-1
        ;;
    batches)
        for sessions in 8 32; do
            for method in f16 q4_0 terse-2; do
                measure "$programs/bench_batch" "$model" "$sessions" 32768 "$method" 8 8 cuda
            done
        done
        ;;
    sealing)
        for method in q4_0 terse-2; do measure "$programs/bench_sealing_steps" "$model" 32768 "$method" cuda; done
        ;;
    *)
        echo "measure-cuda.sh: no part $part" >&2
        exit 1
        ;;
    esac
done
exit $failed
