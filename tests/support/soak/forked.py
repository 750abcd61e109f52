"""Functions in forked processes, and what they may say."""

import os
import signal
import sys
import traceback
import warnings

MOST_SECONDS = 240  # a child that takes longer hangs


def forked(function):
    """Fork, and run the function in the child, whose number is returned; it ends with status 0, or 1 by an error."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: forking with threads is the test
        child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(MOST_SECONDS)  # whose signal ends it
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def status_of(child):
    """Wait for a child; negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(function):
    """Run the function in a forked process, and return its exit status."""
    return status_of(forked(function))


def names(error, place):
    """Assert that an error says where."""
    assert str(place), f"an error that names no file: {error}"
    assert str(place) in str(error), f"it does not name {place}: {error}"
