"""`terse serve` of two ranks, started by mpirun or what else MPIEXEC names ("srun --overcommit --mpi=pmix"): rank 0 listens, and answers as one
process does."""
import glob
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest

from served import COMMAND, PATIENCE, Server, answer, ask_about, document, main

MPIEXEC = (os.environ.get("MPIEXEC") or "mpirun").split()
KILLED = ("exited on signal 9", "task 1: Killed")  # Open MPI, srun; MPICH says it on standard output
OPTIONS = ("--kv", "q8_0", "-t", "1", "-np", "2")


class Ranks(Server):
    launcher = (*MPIEXEC, "-n", "2")

    def __init__(self, *options):
        os.environ["SERVE_RANKS"] = self.mark = "%d.%d" % (os.getpid(), time.monotonic_ns())
        super().__init__(*options)

    def rank(self, number):
        """The process of a rank."""
        numbers = {b"%s=%d" % (name, number) for name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"PMIX_RANK")}
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as file:
                    values = set(file.read().split(b"\0"))
            except OSError:
                continue
            if b"SERVE_RANKS=" + self.mark.encode() in values and numbers & values:
                return int(path.split("/")[2])
        raise AssertionError("there is no rank %d" % number)


def replies(server):
    """What a server says: whole replies, one that goes on from a prefix, a streamed one, and log-probabilities."""
    text = document(4711)
    first = server.chat(text + "\n\nWhat is the access code for the merry lantern?", max_tokens=24, temperature=0)
    again = server.post("/v1/chat/completions", {"messages": ask_about(text), "max_tokens": 24, "temperature": 0})[2]
    events = list(server.stream("/v1/completions", {"prompt": text[:1500], "max_tokens": 12, "temperature": 0}))
    streamed = "".join(event["choices"][0]["text"] for event in events[:-1] if event["choices"])
    return (first["choices"][0]["message"]["content"], again["choices"][0]["message"]["content"],
            again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, streamed)


class RanksTest(unittest.TestCase):
    def test_two_ranks_answer_as_one_process(self):
        alone = Server(*OPTIONS)
        want = replies(alone)
        self.assertEqual(alone.stop(), 0)
        self.assertIn(answer(4711), want[0])
        ranks = Ranks(*OPTIONS)
        self.assertEqual(replies(ranks), want)
        # A client that goes away in the middle of its prompt or reply leaves the others alone.
        connection = ranks.connect()
        connection.request("POST", "/v1/completions", '{"prompt": "%s", "max_tokens": 2000, "stream": true}' % ("the sea " * 500))
        connection.getresponse().read(40)
        connection.close()
        self.assertEqual(replies(ranks), want)
        os.kill(ranks.rank(0), signal.SIGTERM)
        self.assertEqual(ranks.wait(), 0, ranks.rest)

    def test_what_ranks_have_read_one_process_need_not_read_again(self):
        question = {"messages": ask_about(document(4712)), "max_tokens": 24, "temperature": 0}
        with tempfile.TemporaryDirectory() as folder:
            ranks = Ranks(*OPTIONS, "--state-dir", folder)
            first = ranks.post("/v1/chat/completions", question)[2]
            # A state is saved by another thread, beside replies.
            others = [ranks.chat("Tell me of the sea and of ships, number %d." % i, max_tokens=24) for i in range(4)]
            self.assertTrue(all(other["choices"] for other in others))
            os.kill(ranks.rank(0), signal.SIGTERM)
            self.assertEqual(ranks.wait(), 0, ranks.rest)
            for kind in (Server, Ranks):
                server = kind(*OPTIONS, "--state-dir", folder)
                again = server.post("/v1/chat/completions", question)[2]
                self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 500)
                self.assertEqual(again["choices"][0]["message"], first["choices"][0]["message"])
                os.kill(server.rank(0) if kind is Ranks else server.process.pid, signal.SIGTERM)
                self.assertEqual(server.wait(), 0, server.rest)

    def test_a_killed_rank_ends_the_server(self):
        ranks = Ranks(*OPTIONS)
        os.kill(ranks.rank(1), signal.SIGKILL)
        begun = time.monotonic()
        self.assertNotEqual(ranks.wait(), 0)
        self.assertLess(time.monotonic() - begun, PATIENCE)
        self.assertTrue("mpich" in MPIEXEC[0] or any(line in ranks.rest for line in KILLED), ranks.rest)


if __name__ == "__main__":
    if COMMAND and not (shutil.which(MPIEXEC[0]) and os.path.exists(os.path.join(os.path.dirname(COMMAND), "..", "libterse-mpi.so"))):
        print("skipped: there is no " + MPIEXEC[0] + ", or terse was built without MPI")
        sys.exit(77)
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_btl_vader_single_copy_mechanism="none",
                      OMPI_MCA_rmaps_base_oversubscribe="1")
    main()
