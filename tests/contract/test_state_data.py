"""A state is small plain data of a pinned form; what does not fit is refused; what was killed goes on."""

import io
import json
import os
import signal

import pytest
import torch
from programs import started
from repository import DATA
from stopping import make
from torch.utils.data import DistributedSampler, RandomSampler, TensorDataset

import memload

SAVED = json.loads((DATA / "loader_states_v1.json").read_text())


@pytest.mark.parametrize("kind", SAVED)
def test_states_of_version_1_load_for_ever(kind):
    loader = make(kind, 40, seed=1)
    loader.load_state_dict(SAVED[kind]["state"])
    assert [batch.tolist() for batch in loader] == SAVED[kind]["rest"]


def numbers(rows=10, **settings):
    return memload.FastLoader(memload.from_arrays(x=torch.arange(rows)).only("x"), **settings)


def test_a_state_says_what_it_is_of_and_how_far_the_loop_is():
    torch.manual_seed(0)
    loader = numbers(batch_size=4)
    next(iter(loader))
    base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(0)).item())
    assert loader.state_dict() == {
        "memload": 1,
        "dataset": {"rows": 10, "fields": {"x": ["int64"]}},
        "batches": {"size": 4, "drop_last": False},
        "sampler": {"kind": "SequentialSampler", "rows": 10},
        "passes": 1,
        "delivered": 1,
        "finished": False,
        "base_seed": base_seed,
        "position": {"row": 4, "drawn": 0, "memories": []},
        "generators": {},
        "epoch": None,
    }


def test_torch_saves_and_loads_it_with_weights_only():
    loader = make("shuffled by a generator", 600)
    iterator = iter(loader)
    next(iterator)
    kept = io.BytesIO()
    torch.save(loader.state_dict(), kept)
    kept.seek(0)
    taken_up = make("shuffled by a generator", 600, seed=2)
    taken_up.load_state_dict(torch.load(kept, weights_only=True))
    assert [batch.tolist() for batch in taken_up] == [batch.tolist() for batch in iterator]


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "several permutations", "weighted by a generator"])
@pytest.mark.parametrize("taken", [1, 7000])
def test_a_state_is_small_wherever_the_loop_is(kind, taken):
    loader = make(kind, 100_000, batch_size=10)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    assert len(json.dumps(loader.state_dict())) < 20_000


def test_what_the_loop_has_seen_is_not_gathered_again():
    loader = numbers(1000, batch_size=10, shuffle=True)
    iterator = iter(loader)
    for _ in range(90):
        next(iterator)
    taken_up = numbers(1000, batch_size=10, shuffle=True)
    taken_up.load_state_dict(loader.state_dict())
    list(taken_up)
    assert taken_up.stats().batches == 10


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: numbers(11, batch_size=4, shuffle=True), r"dataset, rows: expected 10, got 11"),
        (lambda: numbers(batch_size=5, shuffle=True), r"batches, size: expected 4, got 5"),
        (lambda: numbers(batch_size=4), r"sampler, kind: expected 'RandomSampler', got 'SequentialSampler'"),
        (lambda: numbers(batch_size=4, shuffle=True, drop_last=True), r"drop_last: expected False, got True"),
        (
            lambda: numbers(batch_size=4, sampler=RandomSampler(range(10), True)),
            r"sampler, replacement: expected False, got True",
        ),
        (
            lambda: numbers(batch_size=4, shuffle=True, generator=torch.Generator()),
            r"sampler, generator: expected False, got True",
        ),
        (
            lambda: memload.FastLoader(TensorDataset(torch.arange(10)), 4, shuffle=True),
            r"dataset, fields, .*: expected None, got \['int64'\]",
        ),
    ],
)
def test_the_state_of_another_loader_is_refused_with_what_differs(other, said):
    with pytest.raises(ValueError, match=said):
        other().load_state_dict(numbers(batch_size=4, shuffle=True).state_dict())


def test_a_refused_state_leaves_the_loader_as_it_was():
    loader = numbers(batch_size=4)
    with pytest.raises(ValueError, match="another loader"):
        loader.load_state_dict(numbers(11, batch_size=4).state_dict())
    assert len(list(loader)) == 3


@pytest.mark.parametrize(
    ("state", "error", "said"),
    [
        ({"memload": 2}, ValueError, "format version 2, expected 1"),
        ({"_num_yielded": 3}, ValueError, "not the state of a FastLoader.*_num_yielded"),
        ({"memload": 1, "dataset": {}}, ValueError, "incomplete: batches, sampler"),
        ([1], TypeError, "got list"),
    ],
)
def test_what_is_no_state_is_refused(state, error, said):
    with pytest.raises(error, match=said):
        numbers(batch_size=4).load_state_dict(state)


def test_shards_with_other_bytes_are_another_dataset(tmp_path):
    for name, fill in (("a", 0), ("b", 1)):
        memload.write(tmp_path / name, {"x": torch.full((10, 3), fill)}, progress=False)
    state = memload.FastLoader(memload.open(tmp_path / "a"), 4).state_dict()
    memload.FastLoader(memload.open(tmp_path / "a"), 4).load_state_dict(state)
    with pytest.raises(ValueError, match=r"dataset, checksums, x: expected '[0-9a-f]{16}', got '[0-9a-f]{16}'"):
        memload.FastLoader(memload.open(tmp_path / "b"), 4).load_state_dict(state)


def test_a_damaged_state_raises_when_it_is_loaded():
    state = json.loads(json.dumps(SAVED["shuffled"]["state"]))
    state["position"]["memories"][0]["generator"] = "AAAA"
    with pytest.raises(ValueError, match=r'state\["position"\]\["memories"\]\[0\]\["generator"\] is \'AAAA\', .*5056'):
        make("shuffled", 40).load_state_dict(state)


def test_loading_nothing_begins_an_epoch():
    loader = numbers(batch_size=4)
    next(iter(loader))
    loader.load_state_dict({})
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_is_told_does_not_change_with_the_loader():
    loader = numbers(batch_size=4)
    iterator = iter(loader)
    next(iterator)
    told = loader.state_dict()
    kept = json.dumps(told)
    list(iterator)
    loader.load_state_dict(told)
    next(iter(loader))
    assert json.dumps(told) == kept


TRAINING = """
import json, os, sys, torch, memload
kept, log, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
ds = memload.from_arrays(x=torch.arange(50)).only("x")
generator = torch.Generator().manual_seed(4)
loader = memload.FastLoader(ds, batch_size=3, shuffle=True, generator=generator, threads=threads)
epoch = 0
if os.path.exists(kept):
    saved = json.load(open(kept))
    loader.load_state_dict(saved["loader"])
    epoch = saved["epoch"]
while epoch < 3:
    for batch in loader:
        state = {"epoch": epoch, "loader": loader.state_dict(), "batch": batch.tolist()}
        with open(kept + ".new", "w") as file:
            json.dump(state, file)
        os.replace(kept + ".new", kept)
        with open(log, "a") as file:
            print(batch.tolist(), file=file, flush=True)
        print("step", flush=True)
        sys.stdin.readline()
    epoch += 1
"""


def test_a_training_that_is_killed_goes_on_from_its_last_state(tmp_path):
    def train(log, threads, steps):
        """Let it run for so many steps, then kill it; True: it came to its end before."""
        with started(TRAINING, tmp_path / f"{log}.json", tmp_path / f"{log}.txt", str(threads)) as process:
            for _ in range(steps):
                if not process.stdout.readline():
                    return process.wait() == 0
                process.stdin.write("\n")
                process.stdin.flush()
            process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        return False

    assert not train("killed", 2, 25)
    assert train("killed", 1, 1000)
    never_killed = numbers(50, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(4))
    expected = [batch.tolist() for _ in range(3) for batch in never_killed]
    assert [json.loads(line) for line in (tmp_path / "killed.txt").read_text().splitlines()] == expected


def test_the_state_tells_what_a_distributed_sampler_has_left_of_its_epoch():
    dataset = memload.from_arrays(x=torch.arange(10)).only("x")
    loader = memload.FastLoader(dataset, 2, sampler=DistributedSampler(dataset, 2, 0, seed=8))
    assert loader.state_dict()["position"] is None
    next(iter(loader))
    assert loader.state_dict()["position"] == {"epoch": 0, "gone": 4}
