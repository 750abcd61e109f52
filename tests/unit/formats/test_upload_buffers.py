"""Memory for shards on their way to a store is used again, once nothing has it any more."""

import asyncio
import mmap
import os
import re
import types
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore
from waiting import MOST_SECONDS

from memload.formats.remote import upload_buffers, writable_objects
from memload.formats.remote.addresses import Address
from memload.formats.remote.link import link
from memload.formats.remote.upload_buffers import UploadBuffers


@pytest.fixture
def later(monkeypatch):
    """What is to be done after a time."""
    calls = []
    monkeypatch.setattr(
        upload_buffers, "link", lambda: types.SimpleNamespace(after=lambda seconds, act: calls.append(act))
    )
    return calls


def test_a_buffer_that_was_given_back_is_taken_again(later):
    buffers = UploadBuffers()
    small, large = buffers.take(10), buffers.take(100)
    for buffer in (large, small):
        buffers.give(buffer, memoryview(buffer.data)[:7])
    assert buffers.take(5) is small
    assert buffers.take(5) is large
    assert buffers.take(5) is not small


def test_a_buffer_that_a_store_still_has_is_not_used_again(later):
    buffers = UploadBuffers()
    buffer = buffers.take(10)
    buffer[:] = 7
    store, lent = MemoryStore(), memoryview(buffer.data)
    obstore.put(store, "kept", lent, use_multipart=False)
    buffers.give(buffer, lent)
    buffers.take(10)[:] = 8
    assert bytes(obstore.get(store, "kept").bytes()) == b"\7" * 10


def test_the_room_is_bounded_and_a_large_shard_gets_none(later, monkeypatch):
    monkeypatch.setattr(upload_buffers, "LARGEST", 60)
    monkeypatch.setattr(upload_buffers, "_MOST", 100)
    buffers = UploadBuffers()
    assert buffers.take(61) is None
    first, second = buffers.take(30), buffers.take(60)
    assert buffers.take(11) is None
    for buffer in (first, second):
        buffers.give(buffer)
    assert buffers.take(55) is second
    assert len(buffers.take(40)) == 40  # in place of the first one, which is too small
    assert buffers.take(1) is None


def test_buffers_go_once_nobody_took_one_for_a_time(later):
    buffers = UploadBuffers()
    buffer = buffers.take(10)
    buffers.give(buffer)
    assert buffers.take(10) is buffer
    later.pop()()  # too early: it is in use
    buffers.give(buffer)
    later.pop()()
    assert buffers.take(10) is not buffer


def test_a_store_is_made_once_for_each_environment(monkeypatch):
    def store():
        return Address("s3://bucket/once").writable().store

    monkeypatch.setenv("AWS_REGION", "us-east-1")
    first = store()
    assert store() is first
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert store() is not first
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert store() is first
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a process that was forked
    assert store() is not first


def resident(path):
    """Return the KiB of a mapped file that this process has in memory."""
    smaps = Path("/proc/self/smaps").read_text()
    return int(re.search(rf"{re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", smaps)[1])


def test_the_pages_of_a_file_that_is_sent_are_given_back(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)) * (1 << 14))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    read = bytes(mapped)
    assert resident(path) == 4096

    async def sent():
        async with writable_objects._released(mapped):
            while resident(path):
                await asyncio.sleep(0.01)

    link().submit(sent()).result(MOST_SECONDS)
    assert mapped[:] == read
