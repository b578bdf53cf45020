"""The best of PyTorch's attention in half precision, of one layer at decoding: what bench_attend_cuda's times are set beside. Both sides are
replayed as graphs over copies of the cache larger than the L2; medians.

    bench_attend_cuda | python3 f16_attention.py

Shapes are those of its lines: SEQUENCESxTOKENS, of 8 KV heads, or SEQUENCESxTOKENS/KV_HEADS.
"""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, HEAD_DIM = 32, 128
ROTATED, LAUNCHES, REPLAYS = 300e6, 24, 11


def time_of(backend, queries, keys, values, grouped):
    """Microseconds of a launch, or None where the backend refuses."""

    def attend(i):
        if grouped:
            return F.scaled_dot_product_attention(queries, keys[i], values[i], enable_gqa=True)
        return F.scaled_dot_product_attention(queries.view(*keys[i].shape[:2], -1, HEAD_DIM), keys[i], values[i])

    try:
        with sdpa_kernel(backend):
            for i in range(len(keys)):
                attend(i)
            torch.cuda.synchronize()
            launches = -(-LAUNCHES // len(keys)) * len(keys)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(launches):
                    attend(i % len(keys))
    except RuntimeError:
        return None
    times = []
    for i in range(REPLAYS + 2):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / launches)
    times = sorted(times[2:])
    return times[len(times) // 2]


def best_of(sequences, tokens, kv_heads):
    size = sequences * tokens * kv_heads * HEAD_DIM * 4
    copies = max(2, int(ROTATED / size) + 1)
    shape = (sequences, kv_heads, tokens, HEAD_DIM)
    keys, values = ([torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(copies)] for _ in range(2))
    queries = torch.randn((sequences, HEADS, 1, HEAD_DIM), device="cuda", dtype=torch.float16)
    times = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        for grouped in (True, False):
            times[name + (" grouped" if grouped else " folded")] = time_of(backend, queries, keys, values, grouped)
    name, best = min(((n, t) for n, t in times.items() if t), key=lambda entry: entry[1])
    return name, best


def main():
    rows, columns = {}, []
    for line in sys.stdin:
        codec, column, us, rate = line.split()[:4]
        rows.setdefault(codec, {})[column] = (float(us), float(rate))
        if column not in columns:
            columns.append(column)
    best = {}
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for column in columns:
        shape, _, kv_heads = column.partition("/")
        sequences, tokens = map(int, shape.split("x"))
        name, best[column] = best_of(sequences, tokens, int(kv_heads or 8))
        print(f"PyTorch {column}: {best[column]:.2f} us ({name})", flush=True)
        torch.cuda.empty_cache()
    print(f"{'':10}" + "".join(f"{column:>24}" for column in columns))
    for codec, row in rows.items():
        cells = (f"{row[c][0]:.1f} us {best[c] / row[c][0]:.2f}x {row[c][1]:.2f}" if c in row else "" for c in columns)
        print(f"{codec:10}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
