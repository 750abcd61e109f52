"""Chains of filters against the libraries that write them, and how codecs are stated."""

import gzip
import io
import zlib

import h5py
import hdf5plugin
import numcodecs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from waiting import lets_others_run

import memload
from memload._core import Chain, Storage, bench_decode

DTYPES = ["u1", "i2", "f4", "f8", "c16"]
shapes = st.integers(1, 3000)
arrays = st.builds(
    lambda dtype, n, seed: np.random.default_rng(seed).integers(0, 60, n).astype(dtype),
    st.sampled_from(DTYPES),
    shapes,
    st.integers(0, 99),
)


def chain(*filters):
    return Chain([(*one, 0, 0)[:3] for one in filters])


NUMCODECS = {
    "zlib": (lambda e: numcodecs.Zlib(4), lambda e: chain(("deflate",))),
    "gzip": (lambda e: numcodecs.GZip(4), lambda e: chain(("deflate",))),
    "zstd": (lambda e: numcodecs.Zstd(3), lambda e: chain(("zstd",))),
    "lz4": (lambda e: numcodecs.LZ4(), lambda e: chain(("lz4",))),
    "shuffle": (lambda e: numcodecs.Shuffle(e), lambda e: chain(("shuffle", e))),
    "fletcher32": (lambda e: numcodecs.Fletcher32(), lambda e: chain(("fletcher32",))),
    "crc32c": (lambda e: numcodecs.CRC32C(location="end"), lambda e: chain(("crc32c",))),
    **{
        f"blosc-{name}-{shuffle}": (
            lambda e, name=name, shuffle=shuffle: numcodecs.Blosc(name, 5, shuffle),
            lambda e: chain(("blosc",)),
        )
        for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in (0, 1, 2)
    },
}


if not hasattr(numcodecs, "CRC32C"):  # its releases for Python 3.10
    del NUMCODECS["crc32c"]


@pytest.mark.parametrize("codec", NUMCODECS)
@settings(max_examples=15)
@given(array=arrays)
def test_what_numcodecs_encodes_is_decoded(codec, array):
    write, read = NUMCODECS[codec]
    stored = bytes(write(array.itemsize).encode(array))
    assert read(array.itemsize).decode(stored, array.nbytes) == array.tobytes()


HDF5 = {
    "gzip, shuffle, fletcher32": (
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        lambda e: chain(("shuffle", e), ("deflate",), ("fletcher32",)),
    ),
    "lzf, shuffle": ({"compression": "lzf", "shuffle": True}, lambda e: chain(("shuffle", e), ("lzf",))),
    "bitshuffle": (hdf5plugin.Bitshuffle(cname="none"), lambda e: chain(("bitshuffle", e))),
    "bitshuffle, lz4": (hdf5plugin.Bitshuffle(cname="lz4"), lambda e: chain(("bitshuffle_lz4", e))),
    "bitshuffle, zstd": (hdf5plugin.Bitshuffle(cname="zstd"), lambda e: chain(("bitshuffle_zstd", e))),
    "lz4": (hdf5plugin.LZ4(), lambda e: chain(("lz4_blocks",))),
    "lz4, small blocks": (hdf5plugin.LZ4(nbytes=512), lambda e: chain(("lz4_blocks",))),
    "zstd": (hdf5plugin.Zstd(), lambda e: chain(("zstd",))),
    "blosc": (hdf5plugin.Blosc("lz4", shuffle=2), lambda e: chain(("blosc",))),
}


@pytest.mark.parametrize("filters", HDF5)
@settings(max_examples=10)
@given(array=arrays)
def test_what_hdf5_filters_is_decoded_with_their_mask(filters, array):
    how, read = HDF5[filters]
    with h5py.File(io.BytesIO(), "w") as file:
        dataset = file.create_dataset("a", data=array, chunks=array.shape, **how)
        file.flush()
        mask, stored = dataset.id.read_direct_chunk((0,))
    assert read(array.itemsize).decode(stored, array.nbytes, mask) == array.tobytes()


@settings(max_examples=60)
@given(
    raw=st.binary(max_size=5000),
    element=st.sampled_from([1, 2, 4, 8]),
    shuffle=st.sampled_from([None, "shuffle", "bitshuffle", "byteswap"]),
    codec=st.sampled_from(["lz4", "zstd", "blosc"]),
    inner=st.sampled_from(["blosclz", "lz4", "zstd"]),
    inside=st.sampled_from(["none", "byte", "bit"]),
)
def test_what_is_encoded_decodes_to_itself(raw, element, shuffle, codec, inner, inside):
    filters = chain(*([(shuffle, element)] if shuffle else []), (codec, element if codec == "blosc" else 0))
    stored = filters.encode(raw, level=5, inner=inner, shuffle=inside)
    assert filters.decode(stored, len(raw)) == raw


def test_numcodecs_reads_what_is_encoded_here():
    raw = bytes(range(256)) * 40
    assert bytes(numcodecs.Zstd().decode(chain(("zstd",)).encode(raw, level=3))) == raw
    assert bytes(numcodecs.LZ4().decode(chain(("lz4",)).encode(raw))) == raw
    shuffled = chain(("shuffle", 4)).encode(raw)
    assert bytes(numcodecs.Shuffle(4).encode(np.frombuffer(raw, "u1"))) == shuffled


runs = st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 300)), max_size=12)


@settings(max_examples=60)
@given(runs=runs, level=st.sampled_from([1, 2, 9]))
@example(runs=[(bytes(range(250)) * 3, 1), (b"\0", 70_000), (b"abc", 200)], level=1)
def test_lz4_itself_reads_runs_that_are_written_to_be_repeated_from_one_byte_back(runs, level):
    raw = b"".join(piece * times for piece, times in runs)
    stored = chain(("lz4",)).encode(raw, level=level)
    assert chain(("lz4",)).decode(stored, len(raw)) == raw
    assert not raw or bytes(numcodecs.LZ4().decode(stored)) == raw  # numcodecs refuses to decode to nothing


@settings(max_examples=300)
@given(data=st.data())
def test_damaged_bytes_raise_decode_error_or_decode_to_the_size_asked_for(data):
    raw = bytes(range(200)) * 20
    encoders = {
        "deflate": lambda: data.draw(st.sampled_from([zlib.compress(raw), gzip.compress(raw)])),
        "zstd": lambda: chain(("zstd",)).encode(raw),
        "lz4": lambda: chain(("lz4",)).encode(raw),
        "blosc": lambda: chain(("blosc", 2)).encode(raw, level=5, shuffle="byte"),
        "lzf": lambda: raw[:50],
    }
    codec = data.draw(st.sampled_from(sorted(encoders)))
    stored = bytearray(encoders[codec]())
    for _ in range(data.draw(st.integers(0, 5))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    stored = stored[: data.draw(st.one_of(st.just(len(stored)), st.integers(0, len(stored))))]
    try:
        said = f"{codec}: {len(chain((codec,)).decode(stored, len(raw)))}"
    except memload.DecodeError as error:
        said = str(error)
    assert said.startswith(f"{codec}: ")


def test_decoding_lets_other_python_threads_run():
    stored = chain(("zstd",)).encode(bytes(2**28), level=1)
    assert lets_others_run(lambda: chain(("zstd",)).decode(stored, 2**28))


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ([("zip", 0, 0)], "no filter is called 'zip'"),
        ([("shuffle", 0, 0)], "elements of 1 to 65536 bytes"),
        ([("bitshuffle", 2, 12)], "a multiple of 8 elements"),
        ([("zstd", 0, 0)] * 33, "at most 32 filters"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(filters, says):
    with pytest.raises(ValueError, match=says):
        Chain(filters)


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("zstd", memload.Codec("zstd", 3)),
        ("lz4:9", memload.Codec("lz4", level=9)),
        ("blosc2:shuffle=bit,rows=8", memload.Codec("blosc2", 5, "bit", 8)),
        ("zstd:level=-3,shuffle=none", memload.Codec("zstd", -3, "none")),
    ],
)
def test_a_codec_is_what_its_text_states(text, codec):
    assert memload.Codec.parse(text) == codec
    assert memload.Codec.parse(str(codec)) == codec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gzip", "there are lz4, zstd, blosc2"),
        ("zstd:99", "levels -7 to 22"),
        ("zstd:fast", "invalid literal"),
        ("zstd:speed=3", "'speed' is none of level, shuffle and rows"),
        ("lz4:shuffle=bits", "none, byte, bit"),
        ("lz4:rows=0", "at least 1"),
    ],
)
def test_a_codec_that_cannot_be_says_what_there_is(text, says):
    with pytest.raises(ValueError, match=says) as raised:
        memload.Codec.parse(text)
    assert text in str(raised.value)


@pytest.mark.parametrize("ring_bytes", [0, 10_000])
@pytest.mark.parametrize("native", [False, True], ids=["zlib-ng", "chain"])
def test_the_rate_of_decoding_counts_each_part_once_and_refuses_what_decodes_to_another_size(native, ring_bytes):
    parts = [np.random.default_rng(k).integers(0, 9, 1000 + k, dtype=np.uint8).tobytes() for k in range(50)]
    stored = [zlib.compress(part) for part in parts]
    whole = np.frombuffer(b"".join(stored), np.uint8)
    storage = Storage.borrow(whole, whole.ctypes.data, whole.nbytes, "parts")
    ends = np.cumsum([len(part) for part in stored])
    table = np.array([[0, end - len(s), len(s), len(p)] for end, s, p in zip(ends, stored, parts, strict=True)])
    filters = chain(("deflate",)) if native else None
    done = bench_decode([storage], table, 2, 0.0, filters, ring_bytes=ring_bytes)
    assert (done["parts"], done["bytes"]) == (50, sum(map(len, parts)))
    table[17, 3] -= 1
    with pytest.raises((RuntimeError, memload.errors.DecodeError)):
        bench_decode([storage], table, 2, 0.0, filters, ring_bytes=ring_bytes)
