"""kill -9 while sets are written, appended to, converted, cached and scored: what opens is whole, and goes on."""

import os
import signal
import time
from collections import Counter

from soak.forked import forked, status_of
from soak.jobs import KINDS

MOST_SECONDS = {"Writing": 0.15, "Appending": 0.15, "Converting": 0.2, "Caching": 0.4, "Scoring": 0.3}


def attack(rng, folder):
    """Kill a writer up to four times, each time somewhere; then let it finish."""
    job = rng.choice(KINDS)(rng, folder)
    kind, tried = type(job).__name__.lower(), Counter()
    job.prepare()
    for _ in range(rng.randint(1, 4)):
        child = forked(job.run)
        time.sleep(rng.random() * MOST_SECONDS[type(job).__name__])
        os.kill(child, signal.SIGKILL)
        status = status_of(child)
        assert status in (0, -signal.SIGKILL), status
        tried[f"{kind}: killed" if status else f"{kind}: was faster"] += 1
        job.unharmed()
    job.finished()
    return tried
