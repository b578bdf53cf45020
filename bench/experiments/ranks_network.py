"""Measures a decoding step of several ranks over a network of a set latency and rate, beside the model (ranks_model.py): the table of
docs/distributed.md. Each rank has a network namespace of its own, and its frames go through this program, which holds each of them as long as a
switch and cables would: a link carries one frame at a time in each direction, at the rate, and a frame comes over a while after it has left. It
needs root, /dev/net/tun, ip, cc and Open MPI, and of Python the standard library alone.

    ranks_network.py TERSE [RANKS,...]

The time of a step is the median of those between tokens that terse run writes. tc's netem would do the same in a kernel that has it."""
import fcntl
import heapq
import os
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import ranks_model

SETTINGS = [(latency, rate) for rate in (100, 10) for latency in (0.1, 1, 10)]  # milliseconds, Mbit/s
LAYERS, QUERY_HEADS, HEAD_DIM = 12, 6, 128  # the built-in model
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/fixtures/wiki_excerpt.txt")
PROMPT, TOKENS = 1000, 48  # bytes: one panel, so that no rank waits for hidden states, and more than the window of exact tokens
NAME = "terse-ranks-%d"
# On a busy machine a rank that polls and yields its processor gets it back some milliseconds later, and one that sleeps at once.
SLEEPY_YIELD = "#include <time.h>\nint sched_yield(void) { return nanosleep(&(struct timespec){.tv_nsec = 20000}, 0); }\n"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def open_tap(number):
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"terse%d" % number, IFF_TAP | IFF_NO_PI))
    return tap


def place_tap(number):
    """Moves the interface of a tap into the namespace of its rank; its MAC address ends with the rank."""
    name, inside = NAME % number, ("-n", NAME % number)
    ip("netns", "add", name)
    ip("link", "set", "terse%d" % number, "netns", name)
    ip(*inside, "link", "set", "lo", "up")
    ip(*inside, "link", "set", "terse%d" % number, "name", "eth0", "address", "02:00:00:00:00:%02x" % number)
    ip(*inside, "addr", "add", "10.77.0.%d/24" % (number + 1), "dev", "eth0")
    ip(*inside, "link", "set", "eth0", "up")


def relay(taps, latency, rate):
    """Carries frames between taps for ever. `latency` seconds; `rate` bytes/s, 0: any."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))  # ranks poll: it would get the processor late
    leaves, comes = [0.0] * len(taps), [0.0] * len(taps)  # when a link will have carried what is on it, to and from the switch
    held, order = [], 0
    while True:
        wait = None if not held else max(0.0, held[0][0] - time.monotonic())
        for tap in select.select(taps, (), (), wait)[0]:
            now, source = time.monotonic(), taps.index(tap)
            frame = os.read(tap, 65536)
            seconds = len(frame) / rate if rate else 0
            leaves[source] = max(now, leaves[source]) + seconds
            for to in range(len(taps)):
                if to == source or (not frame[0] & 1 and frame[5] != to):
                    continue
                # The switch passes a frame on while it comes, unless another one is on that link.
                comes[to] = max(leaves[source], comes[to] + seconds)
                order += 1
                heapq.heappush(held, (comes[to] + latency, order, to, frame))
        while held and held[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(held)
            try:
                os.write(taps[to], frame)
            except OSError:
                pass  # the interface is not up yet


def measure(terse, ranks, agent, taps, latency, rate):
    """Milliseconds of a decoding step over such a network (milliseconds, Mbit/s; 0: of no limit)."""
    child = os.fork()
    if not child:
        relay(taps[:ranks], latency / 1e3, rate * 1e6 / 8)
    hosts = ",".join("10.77.0.%d:1" % (i + 1) for i in range(ranks))
    subnets = [word for layer in ("btl", "oob") for word in ("--mca", layer + "_tcp_if_include", "10.77.0.0/24")]
    preload = "LD_PRELOAD=" + os.path.join(os.path.dirname(agent), "yield.so")
    command = ["ip", "netns", "exec", NAME % 0, "mpirun", "--mca", "plm_rsh_agent", agent, *subnets, "--mca", "btl", "tcp,self", "--mca",
               "mpi_yield_when_idle", "1", "-x", preload, "--host", hosts, "-n", str(ranks),
               terse, "run", "--kv", "q8_0", "-t", "1", "--temp", "0", "--ignore-eos", "-n", str(TOKENS), "-f", "-"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as job:
            with open(TEXT, "rb") as file:
                job.stdin.write(file.read(PROMPT))
            job.stdin.close()
            times = []
            while os.read(job.stdout.fileno(), 4096):
                times.append(time.monotonic())
            messages = job.stderr.read().decode()
        if job.returncode or len(times) < 3:
            raise RuntimeError(messages)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    # Of fast steps mpirun may write some together.
    mean = float(re.search(r"generated \d+ tokens, ([\d.]+) tokens/s", messages).group(1))
    return 1e3 * min(1 / mean, statistics.median(later - earlier for earlier, later in zip(times, times[1:])))


def main():
    terse = os.path.abspath(sys.argv[1])
    counts = [int(n) for n in (sys.argv[2] if len(sys.argv) > 2 else "2,4").split(",")]
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    taps = [open_tap(i) for i in range(max(counts))]
    folder = tempfile.TemporaryDirectory()
    agent = os.path.join(folder.name, "agent")
    with open(agent, "w", encoding="ascii") as file:
        file.write('#!/bin/sh\nrank=$((${1##*.} - 1))\nshift\n'
                   'exec ip netns exec %s unshare -u sh -c "hostname rank$rank; $*"\n' % NAME.replace("%d", "$rank"))
    os.chmod(agent, 0o755)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", os.path.join(folder.name, "yield.so")], input=SLEEPY_YIELD.encode(), check=True)
    try:
        for i in range(len(taps)):
            place_tap(i)
        print("| ranks | latency | rate | model of the network | with the step without delay | measured |\n|---|---|---|---|---|---|", flush=True)
        for ranks in counts:
            base = measure(terse, ranks, agent, taps, 0, 0)
            for latency, rate in SETTINGS:
                network = 1e3 * ranks_model.network(ranks, LAYERS, ranks_model.block(QUERY_HEADS, HEAD_DIM), rate * 1e6 / 8, latency / 1e3)
                print("| %d | %g ms | %d Mbit/s | %.1f ms | %.1f ms | %.1f ms |"
                      % (ranks, latency, rate, network, network + base, measure(terse, ranks, agent, taps, latency, rate)), flush=True)
            again = measure(terse, ranks, agent, taps, 0, 0)
            print("%d ranks without delay: %.1f ms before, %.1f ms after" % (ranks, base, again), file=sys.stderr)
    finally:
        for i in range(len(taps)):
            subprocess.run(["ip", "netns", "del", NAME % i], check=False)


if __name__ == "__main__":
    main()
