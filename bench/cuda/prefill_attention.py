#!/usr/bin/env python3
"""A prompt's attention of terse beside PyTorch's scaled_dot_product_attention (cuDNN and FlashAttention), in one run on one GPU.

usage: prefill_attention.py BENCH_PREFILL

32 query and 8 KV heads, causal, halves. Prints a table: microseconds and TFLOP/s (what the mask hides is not counted) and the best of
PyTorch's times by terse's; above 1.00 terse is faster.
"""

import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    from torch.nn.attention.bias import causal_lower_right
except ImportError:
    causal_lower_right = None

HEADS, KV_HEADS = 32, 8
ROUNDS, ROUND_MS = 7, 30
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def milliseconds(step, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def median_us(step):
    milliseconds(step, 2)
    count = max(1, int(ROUND_MS / milliseconds(step, 3)))
    return statistics.median(milliseconds(step, count) for _ in range(ROUNDS)) * 1e3


def torch_us(backend, n, first, head_dim):
    """None where the backend does not serve the shape."""
    make = lambda heads, rows: torch.randn(1, rows, heads, head_dim, device="cuda", dtype=torch.float16).transpose(1, 2)
    q, k, v = make(HEADS, n), make(KV_HEADS, first + n), make(KV_HEADS, first + n)
    if first and causal_lower_right is None:
        return None
    kind = {"is_causal": True} if first == 0 else {"attn_mask": causal_lower_right(n, first + n)}
    try:
        with sdpa_kernel(backend):
            return median_us(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **kind))
    except RuntimeError:
        return None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    ours = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True).stdout
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; us (TFLOP/s)")
    print(f"{'head_dim':>8} {'queries':>8} {'behind':>8} {'terse':>20}", *(f"{name:>20}" for name in BACKENDS), f"{'best/terse':>11}")
    for line in ours.splitlines():
        _, n, first, head_dim, us, _ = line.split()
        n, first, head_dim, us = int(n), int(first), int(head_dim), float(us)
        operations = (n * first + n * (n + 1) / 2) * 4 * head_dim * HEADS
        show = lambda t: f"{t:11.1f} ({operations / t * 1e-6:6.1f})" if t else "-"
        theirs = [torch_us(backend, n, first, head_dim) for backend in BACKENDS.values()]
        best = min((t for t in theirs if t), default=None)
        print(f"{head_dim:8} {n:8} {first:8} {show(us):>20}", *(f"{show(t):>20}" for t in theirs), f"{best / us:11.2f}" if best else "", flush=True)


if __name__ == "__main__":
    main()
