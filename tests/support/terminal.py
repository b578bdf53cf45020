"""A program on a pseudo-terminal: what is typed, what it writes, signals that keys make, and the size."""
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time


class Terminal:
    """Runs `arguments` with standard input, output and errors on a terminal of its own. Waits are for a slow machine: `limit` in seconds."""

    def __init__(self, arguments, columns=120, limit=120, environment=None):
        self.limit = limit
        self.text = ""  # all that was written so far
        self.seen = 0  # of it, by `expect`
        self.status = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", **(environment or {})})
            os.execv(arguments[0], arguments)
        self.resize(columns)

    def resize(self, columns, rows=40):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def interrupt(self):
        self.type(b"\x03")

    def _read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            got = os.read(self.fd, 65536)
        except OSError:  # the program has ended
            got = b""
        self.text += got.decode(errors="replace")
        return bool(got)

    def expect(self, what):
        """Waits until `what` comes; returns what was written from the end of what was expected before to the end of it."""
        end = time.monotonic() + self.limit
        while (at := self.text.find(what, self.seen)) < 0:
            if time.monotonic() > end or not self._read(0.1):
                raise AssertionError(f"{what!r} did not come; the terminal shows: {self.text[self.seen:]!r}")
        before, self.seen = self.text[self.seen : at + len(what)], at + len(what)
        return before

    def idle(self, seconds):
        """Returns what is written within `seconds` seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._read(left):
            pass
        text, self.seen = self.text[self.seen :], len(self.text)
        return text

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.end()

    def end(self):
        """Waits until the program ends; returns its exit status, or minus the signal that killed it."""
        limit = time.monotonic() + self.limit
        while time.monotonic() < limit and self._read(0.1):
            pass
        if time.monotonic() >= limit:
            os.kill(self.pid, signal.SIGKILL)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return self.status
