"""Ctrl-C at each moment at which Python looks for signals, while blocks of a store are asked for."""

import dis
import sys
from functools import partial

import numpy as np
import pytest
import torch
from waiting import until

import memload
from memload.formats.remote import block_cache, cache_folder, claims, run_fetch

X = torch.arange(1, 33, dtype=torch.int32).repeat(16_384, 1).T.contiguous()  # rows of a block of 64 KiB each


@pytest.fixture
def ds(tmp_path):
    memload.write(tmp_path / "set", {"x": X}, shard_bytes=8 << 16, progress=False)
    return memload.open(f"file://{tmp_path}/set", cache=tmp_path / "cache", cache_bytes="64MB")


@pytest.fixture
def cache(ds):
    return ds.fields["x"].column.storages[0].origin


LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
"""How the names of instructions begin after which Python looks for signals."""


def interrupts(at, names, modules):
    """Return a function for `sys.settrace` that raises an interrupt where Python looks for signals for the `at`th time.

    Args:
        at: how many times.
        names: of the functions in which it is looked at that.
        modules: of these.
    """
    files, seen, before = [module.__file__ for module in modules], [], {}

    def trace(frame, event, _argument):
        if frame.f_code.co_filename not in files or frame.f_code.co_name not in names:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            before[frame] = "RESUME"
        if event == "opcode":
            looked = before[frame].startswith(LOOKS)
            before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            seen.extend([None] * looked)
            if looked and len(seen) == at:
                before.clear()
                raise KeyboardInterrupt
        return trace

    return trace


def is_interrupted(act, *where):
    """Call a function that is interrupted; return whether it was."""
    sys.settrace(interrupts(*where))
    try:
        act()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)


BRINGS = ("begin", "claiming", "hold", "_bring", "_fetch", "of", "runs_of")


def test_an_interrupt_at_any_moment_leaves_nothing_claimed_that_nobody_asks_for(cache):
    """Whoever needs it next, this process above all, would wait for it without end."""
    blocks, at, brought = np.arange(cache.table.blocks), 0, False
    while not brought:
        at += 1
        brought = not is_interrupted(partial(cache.begin, blocks), at, BRINGS, (block_cache, claims, run_fetch))
        until(lambda: not (cache.table.states(0, len(blocks)) & cache_folder.STATE == cache_folder.ARRIVING).any(), 30)
        pinned = cache.table.states(0, len(blocks)) & cache_folder.PINNED
        assert pinned.any() == brought
        cache_folder.evicted(cache.table, blocks, cache.mirrors.place)
    assert at > 30
