"""The program of docs/distributed.md runs under torchrun, over a set in a store, and is stopped and resumed."""

import re
import shutil
import subprocess
import sys

import pytest
import torch
from repository import DOCS

import memload

ROWS = 400
# A thread of gloo that has yet to drop a tensor when the interpreter ends aborts its process (pytorch pull request
# 179291); the run is over then, and another one goes on from its checkpoint.
ABORTED = "terminate called without an active exception"


def run(folder, checkpoint, last_step):
    program = ["train.py", "s3://bucket/many", str(folder / "cache"), str(folder / checkpoint), str(last_step)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *program]
    for _ in range(3):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ABORTED not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_two_ranks_share_a_cache_and_a_run_that_is_stopped_goes_on(store_server, proxy, tmp_path):
    images = torch.randint(1, 255, (ROWS, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    memload.write(tmp_path / "many", {"image": images, "label": torch.arange(ROWS)}, progress=False)
    store_server.put(tmp_path / "many", "many")
    (code,) = re.findall(r"^```python train.py\n(.*?)^```", (DOCS / "distributed.md").read_text(), re.M | re.S)
    (tmp_path / "train.py").write_text(code)
    whole = run(tmp_path, "whole", 17)
    fetched = proxy.ranges()
    assert len(fetched) == len(set(fetched))  # the ranks share a cache
    shutil.copy(tmp_path / "whole", tmp_path / "stopped")  # the checkpoint of step 10, in the second epoch
    assert run(tmp_path, "stopped", 17) == whole
    assert whole.startswith("17 2 ")
    assert proxy.ranges() == fetched
