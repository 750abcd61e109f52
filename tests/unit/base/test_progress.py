"""Progress bars: rate and time left on a terminal, also on one without a size, and nothing elsewhere."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

BAR = """
from memload.progress import bar
with bar("work", 100, None, after=0) as shown:
    for _ in range(5):
        shown.update(10)
    shown.refresh()
"""


def on_terminal(program, rows, columns):
    """Return what a program writes to a standard error that is a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    said = []

    def read():
        while True:
            try:
                said.append(os.read(ours, 4096))
            except OSError:  # the program has ended
                return

    reader = threading.Thread(target=read)
    reader.start()
    subprocess.run([sys.executable, "-c", program], stderr=theirs, stdin=subprocess.DEVNULL, check=True)
    os.close(theirs)
    reader.join()
    os.close(ours)
    return b"".join(said).decode()


@pytest.mark.parametrize(("rows", "columns"), [(40, 100), (0, 0), (0, 100), (40, 0)])
def test_a_terminal_shows_rate_and_time_left(rows, columns):
    """Terminals of containers, and those that `script` makes for a pipe, may have no size."""
    said = on_terminal(BAR, rows, columns)
    assert re.search(r"work: .* 50.0/100 \[\d\d:\d\d<\d\d:\d\d, .*B/s\]", said), said


def test_a_pipe_shows_nothing():
    done = subprocess.run([sys.executable, "-c", BAR], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
