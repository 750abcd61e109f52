"""What type checkers tell those who use memload.

`.ci/run` gives this file to mypy and to pyright, both at their strictest. Each `assert_type` is what
a checker must infer; pytest runs the same lines, so that they are true as well.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typing_extensions import assert_type

import memload


def photographs() -> memload.Dataset:
    stim = torch.zeros(100, 8, 8, 3, dtype=torch.uint8)
    return memload.from_arrays(stim=stim, y=np.zeros(100, np.float32))


def test_a_loader_and_its_batches() -> None:
    loader = memload.FastLoader(
        photographs(), batch_size=4, shuffle=True, cast={"stim": memload.Cast(torch.bfloat16), "y": torch.float32}
    )
    for batch in loader:
        seen: torch.Tensor = batch["stim"]
        assert seen.dtype == torch.bfloat16
    assert_type(len(loader), int)
    assert_type(loader.nbytes, int)
    assert_type(loader.state_dict(), dict[str, Any])
    assert_type(loader.stats(), memload.LoaderStats)


def test_a_loader_is_torch_s() -> None:
    def steps(loader: "torch.utils.data.DataLoader[object]") -> Iterator[object]:
        yield from loader

    loader: memload.FastLoader[object] = memload.FastLoader(photographs(), batch_size=50)
    assert len(list(steps(loader))) == 2


def test_data_sets_and_what_is_made_of_them(tmp_path: Path) -> None:
    dataset = photographs()
    assert_type(dataset.as_tuple("stim", "y"), memload.Dataset)
    train, valid = dataset.split(0.9, seed=0)
    assert_type(train, memload.Dataset)
    assert_type(valid, memload.Dataset)
    assert_type(memload.concat([train, valid]), memload.Dataset)
    assert_type(memload.zip(seen=dataset, z=memload.from_arrays(z=torch.zeros(100))), memload.Dataset)
    assert_type(dataset.map(lambda sample: sample), memload.MappedDataset)
    assert_type(memload.write(tmp_path / "shards", dataset), memload.Dataset)
    assert_type(memload.open(tmp_path / "shards"), memload.Dataset)


def test_groups() -> None:
    groups = memload.concat({"mouse": photographs(), "monkey": photographs()})
    assert_type(groups, memload.Dataset | memload.GroupedDataset)


def test_what_is_known_beforehand() -> None:
    plan = memload.plan(photographs(), batch_size=4)
    assert_type(plan, memload.Plan)
    assert_type(plan.fits, bool)


def test_recordings(tmp_path: Path) -> None:
    trials = {"start": np.array([0.0, 5.0]), "stop": np.array([4.0, 9.0])}
    session = memload.recording(
        {"movie": np.zeros((300, 4, 4), np.uint8)},
        clocks={"movie": memload.Clock(rate=30.0)},
        intervals={"trials": trials},
    )
    assert_type(session, memload.Recording)
    assert_type(session.slices(1.0, hop=0.5, within="trials"), memload.Dataset)
    assert_type(memload.write(tmp_path / "session", session), memload.Recording)
    assert_type(memload.open_recording(tmp_path / "session"), memload.Recording)
