#!/usr/bin/env python3
"""ranks.py N COMMAND...: starts N processes of a command as ranks of this machine, as terse --ranks does for itself (src/dist/host.h). Exits with the
status of the first that fails, and ends the others."""
import os
import socket
import subprocess
import sys
import time

n = int(sys.argv[1])
pairs = [socket.socketpair() for _ in range(1, n)]
ranks = []
for rank in range(n):
    own = [pair[0] for pair in pairs] if rank == 0 else [pairs[rank - 1][1]]
    sockets = [each.fileno() for each in own]
    environment = dict(os.environ, TERSE_RANK=str(rank), TERSE_RANKS=str(n), TERSE_RANK_SOCKETS=",".join(map(str, sockets)))
    ranks.append(subprocess.Popen(sys.argv[2:], env=environment, pass_fds=sockets))
for pair in pairs:
    pair[0].close()
    pair[1].close()
status = 0
while status == 0 and any(each.poll() is None for each in ranks):
    status = next((each.returncode for each in ranks if each.poll()), 0)
    time.sleep(0.05)
status = status or next((each.returncode for each in ranks if each.returncode), 0)
for each in ranks:
    each.kill()
sys.exit(status if status > 0 else 1 if status else 0)
