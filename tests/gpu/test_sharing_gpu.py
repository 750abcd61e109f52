"""Rows that two processes share on one CUDA device, by handles of CUDA, and in RAM that both have pinned.

benchmarks/gpu_check.sh runs these; no CUDA device has run them yet.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from programs import Nursery, run_all

pytestmark = pytest.mark.gpu

PROGRAM = "import sharing_cases; sharing_cases.main({rank}, 2, {folder!r}, 'on_one_gpu')"


def test_two_processes_share_rows_on_one_gpu(tmp_path: Path) -> None:
    if "MIG" in torch.cuda.get_device_name(0):
        pytest.skip("MIG instances share no memory with other processes")
    programs = {str(rank): PROGRAM.format(rank=rank, folder=str(tmp_path)) for rank in range(2)}
    ended = list(run_all(programs, nursery=Nursery(options=())).values())
    assert [one.status for one in ended] == [0, 0], [one.err for one in ended]
    assert [json.loads(one.out[-1]) for one in ended] == [[True] * 4] * 2
