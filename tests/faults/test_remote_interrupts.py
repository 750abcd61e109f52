"""Ctrl-C at each moment at which Python looks for signals, while blocks of a store are asked for and let go of."""

import dis
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from block_sets import cache_of, is_pinned, rows_of_blocks
from waiting import until

import memload
from memload.engine import fetched_batches, read_ahead
from memload.formats.remote import admission, block_cache, cache_folder, claims, link, request_threads, run_fetch
from memload.loader import native_pass

test = sys.modules[__name__]
X = rows_of_blocks(32)


@pytest.fixture
def ds(tmp_path):
    memload.write(tmp_path / "set", {"x": X}, shard_bytes=8 << 16, progress=False)
    return memload.open(f"file://{tmp_path}/set", cache=tmp_path / "cache", cache_bytes="64MB")


@pytest.fixture
def cache(ds):
    return cache_of(ds)


LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
"""How the names of instructions begin at whose end Python looks for signals."""


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
            before[frame] = "RESUME", -1
        if event == "opcode":
            name, place = before[frame]
            looked = name.startswith(LOOKS) and ("JUMP" not in name or frame.f_lasti < place)  # it has jumped
            before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]], frame.f_lasti
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


BRINGS = ("begin", "_begun", "claiming", "hold", "_bring", "_fetch", "of", "runs_of")


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


def test_an_interrupt_at_any_moment_of_a_read_leaves_no_pins(ds, cache):
    """Blocks with a pin stay in the cache as long as the process does."""
    source, rows, at, was_interrupted = SimpleNamespace(fields={"x": ds.fields["x"]}), np.array([3, 30]), 0, True

    def read():
        with fetched_batches.held(source, rows):
            assert is_pinned(cache)

    while was_interrupted:
        at += 1
        was_interrupted = is_interrupted(
            read, at, ("read", "held", "hold", "_wait_for", "_begun", "let_go"), (fetched_batches, block_cache, test)
        )
        assert not is_pinned(cache), at
    assert at > 20


def test_a_read_that_ends_as_an_interrupt_comes_leaves_no_pins(cache):
    """The core lets go of blocks while a signal waits for the next function of Python."""
    blocks = np.arange(4)
    cache.hold(blocks)

    def let_go():
        cache.let_go(blocks)

    is_interrupted(let_go, 2, ("let_go",), (block_cache, test))
    assert not is_pinned(cache)


ASKS = ("fetch", "_enter_with", "enter", "_begin", "try_run", "_started", "_ask_on_loop", "submit", "admission")


@pytest.mark.parametrize("asks", ["the loop", "a thread"])
def test_an_interrupt_at_any_moment_of_a_request_leaves_nothing_in_flight(cache, monkeypatch, asks):
    """What is counted and never ends takes room on the link from all others."""
    one = link.link()
    entry = one.admission(cache.objects.host)
    until(lambda: entry.in_flight == 0)
    blocks, at, was_interrupted = np.arange(cache.table.blocks), 0, True
    if asks == "a thread":
        monkeypatch.setattr(cache.objects, "_make_quick", lambda: cache.objects.store)
        monkeypatch.setattr(entry._rate, "_note", lambda took: None)
        monkeypatch.setattr(entry._rate, "is_quick", True)
    while was_interrupted:
        at += 1
        was_interrupted = is_interrupted(partial(cache.begin, blocks), at, ASKS, (link, admission, request_threads))
        until(lambda: entry.in_flight == 0, 30)
        until(lambda: not (cache.table.states(0, len(blocks)) & cache_folder.STATE == cache_folder.ARRIVING).any(), 30)
        if not was_interrupted:
            cache.let_go(blocks)
        cache_folder.evicted(cache.table, blocks, cache.mirrors.place)
    assert at > 5


PASSES = ("begin", "start", "close", "_end", "stop", "let_go", "gave", "next", "_taken", "_next", "_next_or_closed")


def leaves_nothing(cache):
    """Wait until no thread reads ahead, and return whether no block is pinned."""
    until(lambda: not any(thread.name == "memload-read-ahead" for thread in threading.enumerate()), 30)
    return not is_pinned(cache)


@pytest.mark.parametrize("is_there", [False, True])
def test_an_interrupt_at_any_moment_of_a_pass_leaves_no_pins_and_no_thread(ds, cache, is_there):
    """The thread that reads ahead would hold as much as half of the cache for as long as the process lives."""
    blocks, at, was_interrupted = np.arange(cache.table.blocks), 0, True
    loader = memload.FastLoader(ds, 16)
    if is_there:
        cache.hold(blocks)
        cache.let_go(blocks)

    def read():
        one = iter(loader)
        try:
            next(one)
        finally:
            one.close()

    while was_interrupted:
        at += 1
        was_interrupted = is_interrupted(read, at, PASSES, (fetched_batches, read_ahead, native_pass))
        assert leaves_nothing(cache), at
        if not is_there:
            until(lambda: not (cache.table.states(0, len(blocks)) & cache_folder.STATE == cache_folder.ARRIVING).any())
            cache_folder.evicted(cache.table, blocks, cache.mirrors.place)
    assert at > 30


def test_an_interrupt_at_any_moment_of_the_end_of_a_pass_that_nobody_has_leaves_nothing(ds, cache, monkeypatch):
    """Python prints what is raised there, and goes on."""
    loader, at, interrupted = memload.FastLoader(ds, 16), 0, [None]
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: interrupted.append(raised.exc_type))

    def read():
        one = iter(loader)
        next(one)
        sys.settrace(interrupts(at, ("close", "_end", "stop", "let_go"), (fetched_batches, read_ahead, native_pass)))
        del one
        sys.settrace(None)

    while interrupted:
        interrupted.clear()
        at += 1
        read()
        assert leaves_nothing(cache), at
    assert at > 10


def test_an_interrupt_at_any_moment_of_the_turn_of_a_thread_leaves_the_next_one_its_turn(ds):
    was_interrupted, at = True, 0
    while was_interrupted:
        at += 1
        one = iter(memload.FastLoader(ds, 16, timeout=30))
        was_interrupted = is_interrupted(partial(next, one), at, ("_in_turn", "_next_or_closed"), (native_pass,))
        with ThreadPoolExecutor(1) as another:
            assert another.submit(lambda rest: len(list(rest)), one).result() <= 2
    assert at > 3
