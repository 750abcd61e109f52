"""Waiting for what comes sooner or later, however busy the machine is."""

import threading
import time

MOST_SECONDS = 300.0  # what takes longer does not come: it hangs


def until(condition, within=MOST_SECONDS):
    """Return once the condition holds; fail if it does not come to that."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def lets_others_run(function, least=5):
    """Whether another Python thread has some turns within one call, which is repeated until it is seen.

    A call that keeps Python's lock leaves that thread a turn at its begin and one at its end, whatever else runs.
    """
    turns, done = [0], threading.Event()

    def take_turns():
        while not done.wait(0.001):
            turns[0] += 1

    other = threading.Thread(target=take_turns)
    other.start()
    end = time.monotonic() + MOST_SECONDS
    try:
        while time.monotonic() < end:
            before = turns[0]
            function()
            if turns[0] - before >= least:
                return True
        return False
    finally:
        done.set()
        other.join()


def coming(iterator):
    """What comes, however often a busy machine makes the wait for it end by the timeout."""
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
