"""A model of the time of a decoding step over several machines (docs/distributed.md), from the bytes and messages that the tests hold the
code to (tests/backend/test_ranks.c, test_lead.c). Prints the page's table. Python's standard library alone.

A step reads the weights, and a machine's share of the cache, at the machine's memory bandwidth; then come its exchanges, one in each layer and one
more, and a broadcast. An exchange of n ranks, by recursive doubling, takes log2 n latencies, and n - 1 blocks of a rank come over each link."""
import math

NETWORKS = [  # name, bytes/s, seconds of a message from program to program: assumed, as is usual for such networks
    ("10 Gbit/s Ethernet, TCP, 25 us", 10e9 / 8, 25e-6),
    ("100 Gbit/s RoCE, 4 us", 100e9 / 8, 4e-6),
    ("400 Gbit/s InfiniBand, 2 us", 400e9 / 8, 2e-6),
]
MACHINES = [1, 2, 4, 8, 16, 32, 64]
BANDWIDTH = 100e9  # bytes/s from memory, of one machine
# Llama 3 8B, Q4_K_M.
LAYERS, QUERY_HEADS, KV_HEADS, HEAD_DIM, WEIGHTS = 32, 32, 8, 128, 4.9e9
TOKENS = 1 << 20
CACHES = [("f16", 16.0), ("terse-2", 2.2)]  # bits per value


def block(query_heads, head_dim):
    """Bytes of a rank's partial states of a layer and token."""
    return 4 * (2 * math.ceil(query_heads / 16) * 16 + math.ceil(query_heads * head_dim / 16) * 16)


def exchange(ranks, size, rate, latency):
    return math.ceil(math.log2(ranks)) * latency + (ranks - 1) * size / rate


def network(ranks, layers, size, rate, latency):
    """Seconds of a step's exchanges, of `size` bytes a rank in each layer."""
    if ranks == 1:
        return 0
    return (layers * exchange(ranks, size, rate, latency) + exchange(ranks, 256, rate, latency)
            + math.ceil(math.log2(ranks)) * (latency + 256 / rate))


def step(ranks, cache_bytes, rate, latency):
    return (WEIGHTS + cache_bytes / ranks) / BANDWIDTH + network(ranks, LAYERS, block(QUERY_HEADS, HEAD_DIM), rate, latency)


def main():
    print("| cache | network | " + " | ".join("%d" % n for n in MACHINES) + " |")
    print("|---|---|" + "---|" * len(MACHINES))
    for name, bits in CACHES:
        cache = TOKENS * LAYERS * KV_HEADS * HEAD_DIM * 2 * bits / 8
        for network, rate, latency in NETWORKS:
            times = [1e3 * step(n, cache, rate, latency) for n in MACHINES]
            print("| %s, %.0f GB | %s | " % (name, cache / 1e9, network) + " | ".join("%.0f" % t for t in times) + " |")


if __name__ == "__main__":
    main()
