"""A training loop over a set in a store that is killed at random again and again, and goes on from its last state.

    python killed_loops.py ADDRESS CACHE CACHE_BYTES FOLDER RANK KILLS

Each life of the loop is a forked child. For every batch it appends a line to FOLDER/log, and then replaces
FOLDER/state, which says how much of the log counts. The last life is not killed, and ends its epoch.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import obstore.store  # noqa: F401 - a life has it from its birth
import torch

import memload

BATCH = 8
_MOST_BATCHES, _MOST_SECONDS = 24, 0.02  # of a life before it is killed


def epoch_of(ds, rank, epoch):
    """The loader of one epoch of a rank."""
    torch.manual_seed(1000 * epoch + rank)
    return memload.FastLoader(ds.as_tuple("image", "y"), BATCH, shuffle=True)


def line_of(batch):
    """What the log says of a batch: it tells all bytes and their order."""
    found = hashlib.sha256()
    for field in batch:
        found.update(field.contiguous().numpy().tobytes())
    return found.hexdigest() + "\n"


def train(ds, folder, rank, said, last):
    """Go on from the state in the folder; with `last`, until an epoch ends."""
    saved = {"epoch": 0, "bytes": 0, "loader": {}}
    if (folder / "state").exists():
        saved = json.loads((folder / "state").read_text())
    with (folder / "log").open("a+") as log:
        log.truncate(saved["bytes"])
        epoch, state = saved["epoch"], saved["loader"]
        while True:
            loader = epoch_of(ds, rank, epoch)
            loader.load_state_dict(state)
            for batch in loader:
                log.write(line_of(batch))
                log.flush()
                save(folder, {"epoch": epoch, "bytes": log.seek(0, os.SEEK_END), "loader": loader.state_dict()})
                os.write(said, b".")
            if last:
                return
            epoch, state = epoch + 1, {}


def save(folder, state):
    """Replace the state at once."""
    (folder / "new").write_text(json.dumps(state))
    (folder / "new").replace(folder / "state")


def life(opened, folder, rank, last):
    """Fork a child that trains; return its number, and the end of a pipe that has a byte for each of its batches."""
    heard, said = os.pipe()
    child = os.fork()
    if child:
        os.close(said)
        return child, heard
    try:
        train(opened(), folder, rank, said, last)
        os._exit(0)
    finally:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def main(address, cache, cache_bytes, folder, rank, kills):
    draw, folder = random.Random(rank), Path(folder)
    next(iter(memload.FastLoader(memload.from_arrays(x=torch.zeros(2)), 1, num_workers=0)))  # imported for all lives

    def opened():
        return memload.open(address, cache=cache, cache_bytes=cache_bytes)

    for _ in range(kills):
        child, heard = life(opened, folder, rank, last=False)
        for _ in range(draw.randrange(_MOST_BATCHES)):
            if not os.read(heard, 1):
                break
        time.sleep(draw.random() * _MOST_SECONDS)
        os.kill(child, signal.SIGKILL)
        if (status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) != -signal.SIGKILL:
            sys.exit(f"a life ended by itself, with {status}")
        os.close(heard)
    child, heard = life(opened, folder, rank, last=True)
    while os.read(heard, 1 << 10):
        pass
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6]))
