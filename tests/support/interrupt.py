"""interrupt.py OUT ERR COMMAND...: runs the command, its stderr a terminal, where the first progress comes after half a second instead of five, and
interrupts it as soon as it has written anything, or after a minute. What it writes goes to the files, and its exit status is this program's."""
import os
import pty
import select
import signal
import subprocess
import sys
import time

out, err, command = sys.argv[1], sys.argv[2], sys.argv[3:]
master, slave = pty.openpty()
with open(out, "wb") as stdout, open(err, "wb") as stderr:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=slave, env=dict(os.environ, TERM="xterm"))
    os.close(slave)
    end, interrupted = time.monotonic() + 60, False
    while True:
        if select.select([master], [], [], 0.05)[0]:
            try:
                stderr.write(os.read(master, 65536))
            except OSError:  # nobody writes there any more
                break
        if not interrupted and (stderr.tell() or os.path.getsize(out) or time.monotonic() > end):
            process.send_signal(signal.SIGINT)
            interrupted = True
    status = process.wait()
sys.exit(status if status >= 0 else 128 - status)
