"""All ranks of torch.distributed get one batch size, whichever of them has the least memory."""

import json

import pytest
from programs import run_all
from waiting import MOST_SECONDS

PROGRAM = """
import json, torch, memload
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
rank = {rank}
torch.distributed.init_process_group("gloo", init_method="file://{meeting}", rank=rank, world_size=2)
hidden = torch.nn.BatchNorm1d(256), torch.nn.ReLU()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), *hidden, torch.nn.Linear(256, 8))
replicated = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
sample, found = torch.rand(2, 64), {{}}
own = "3MB" if rank == 0 else "2MB"
for mode in ("static", "measured", "trial"):
    budget = memload.compute_batch_size(replicated, sample, mode=mode, optimizer=optimizer, limit=own, min_batch_size=2)
    found[mode] = budget.batch_size, budget.used <= budget.total
    try:
        little = "3MB" if rank == 0 else "200kB"
        memload.compute_batch_size(replicated, sample, mode=mode, limit=little, min_batch_size=2)
    except MemoryError as error:
        found[mode + " refused"] = str(error)[:25]
found["buckets"] = budget.static.buckets // budget.static.params
print(json.dumps(found))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_with_different_memory_agree_on_what_fits_into_the_least(tmp_path):
    programs = {str(rank): PROGRAM.format(rank=rank, meeting=tmp_path / "meeting") for rank in range(2)}
    ended = run_all(programs, within=MOST_SECONDS)
    assert [one.status for one in ended.values()] == [0, 0], [one.err for one in ended.values()]
    first, second = (json.loads(one.out[-1]) for one in ended.values())
    for mode in ("static", "measured", "trial"):
        assert first[mode] == second[mode]
        assert first[mode][1]
        assert first[f"{mode} refused"] == "another rank has no memor"
        assert second[f"{mode} refused"] == "a batch of 2 does not fit"
    assert abs(first["trial"][0] / first["measured"][0] - 1) < 0.02
    assert first["buckets"] == 1
