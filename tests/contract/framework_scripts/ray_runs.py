"""Ray Train: two workers, and its `prepare_data_loader`, which builds a stock loader with DistributedSampler."""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

import ray
import ray.train.torch
from ray.train import RunConfig, ScalingConfig

HERE = str(Path(__file__).parent)


def train(config):
    """What each worker runs: every scenario, for ours and stock; writes what it saw."""
    sys.path.insert(0, HERE)
    import torch
    from common import BATCH, Net, Noted, Plain, dataset

    import memload

    rank = ray.train.get_context().get_world_rank()

    def trained(make_loader, wrapped, *, shuffle=True):
        torch.manual_seed(6)
        ds = dataset()
        loader = ray.train.torch.prepare_data_loader(make_loader(wrapped(ds), batch_size=BATCH, shuffle=shuffle))
        model = ray.train.torch.prepare_model(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        noted = Noted(ds)
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            noted.begin()
            for batch in loader:
                noted.see(batch)
                optimizer.zero_grad()
                model(batch["stim"]).backward()
                optimizer.step()
        return {"epochs": noted.epochs, "native_rows": ds.stats().rows, "fresh": ds.stats().fresh_batches}

    def compared(make_loader, **arguments):
        ours = trained(make_loader, lambda ds: ds, **arguments)
        return {"ours": ours, "stock": trained(torch.utils.data.DataLoader, Plain, **arguments)}

    def sampled():
        """FastLoader with a DistributedSampler of one's own, left as it is: the whole engine."""
        ds = dataset()
        sampler = torch.utils.data.DistributedSampler(ds, 2, rank, seed=3)
        loader = memload.FastLoader(ds, batch_size=BATCH, sampler=sampler)
        prepared = ray.train.torch.prepare_data_loader(loader, add_dist_sampler=False)
        stock = torch.utils.data.DataLoader(Plain(ds), BATCH, sampler=sampler)
        noted = Noted(ds), Noted(ds)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for one, batches in zip(noted, (prepared, stock), strict=True):
                one.begin()
                for batch in batches:
                    one.see(batch)
        counted = [{"native_rows": s.rows, "fresh": s.fresh_batches} for s in (loader.stats(), ds.stats())]
        return {k: {"epochs": n.epochs, **c} for k, n, c in zip(("ours", "stock"), noted, counted, strict=True)}

    found = {
        "prepare_data_loader": compared(memload.FastLoader),
        "prepare_data_loader, in order": compared(memload.FastLoader, shuffle=False),
        "a stock loader": compared(torch.utils.data.DataLoader),
        "FastLoader": sampled(),
    }
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(found))


def main():
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as scratch:  # its sockets need a short path
        environment = {"PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            logging_level=logging.ERROR,
            object_store_memory=100 << 20,
            _temp_dir=f"{scratch}/r",
            runtime_env={"env_vars": environment},
        )
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"folder": sys.argv[1]},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=f"{scratch}/results"),
        )
        trainer.fit()
        ray.shutdown()


main()
