"""Rows that two processes share on one CUDA device, by handles of CUDA, and in RAM that both have pinned.

benchmarks/gpu_check.sh runs these; one H200 has run them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sharing_cases
import torch
from programs import Nursery, run_all

pytestmark = pytest.mark.gpu


def test_two_processes_share_rows_on_one_gpu(tmp_path: Path) -> None:
    if "MIG" in torch.cuda.get_device_name(0):
        pytest.skip("MIG instances share no memory with other processes")
    ended = list(run_all(sharing_cases.programs(tmp_path, "on_one_gpu"), nursery=Nursery(options=())).values())
    assert [one.status for one in ended] == [0, 0], [one.err for one in ended]
    assert [json.loads(one.out[-1]) for one in ended] == [[True] * 4] * 2
