"""Lightning's Trainer, which makes a loader anew from its attributes whenever it puts a sampler of its own into it."""

import logging
import pickle
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "support"))
import vision  # noqa: F401 - first: Lightning imports torchvision if it is there, whether or not it suits this torch

# isort: split
import lightning.pytorch as pl
import torch
from common import BATCH, Net, Noted, common_orders, dataset, drawing_sampler, fetcher_loader, report, stock_loader
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

import memload

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

DEVICES = 2 if "ddp" in sys.argv[2:3] else 1
CAST = {"stim": memload.Cast(torch.float32)}


class Module(pl.LightningModule):
    """Notes what each stage is handed, and by which loader: the trainer may make others than it was given."""

    def __init__(self, ds):
        super().__init__()
        self.net = Net()
        self.seen = {stage: Noted(ds) for stage in ("train", "validate", "sanity_check", "predict", "test")}
        self.loaders, self.dtypes = [], set()

    def begin(self, loader):
        self.seen[self.trainer.state.stage].begin()
        if not any(loader is one for one in self.loaders):
            self.loaders.append(loader)

    def step(self, batch, _):
        self.dtypes.add(str(batch["stim"].dtype))
        self.seen[self.trainer.state.stage].see(batch)
        return self.net(batch["stim"])

    training_step = validation_step = test_step = predict_step = step

    def on_train_epoch_start(self):
        self.begin(self.trainer.train_dataloader)

    def on_validation_epoch_start(self):
        self.begin(self.trainer.val_dataloaders)

    def on_test_epoch_start(self):
        self.begin(self.trainer.test_dataloaders)

    def on_predict_epoch_start(self):
        self.begin(self.trainer.predict_dataloaders)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder=None, **arguments):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    machine = {"accelerator": "cpu", "devices": DEVICES, "strategy": "ddp" if DEVICES > 1 else "auto"}
    saving = {"enable_checkpointing": folder is not None, "default_root_dir": folder, "max_epochs": 2}
    return pl.Trainer(**{**quiet, **machine, **saving, **arguments})


def fitted(make_loader, *, loader=None, stage="fit", **arguments):
    pl.seed_everything(3, verbose=False)
    ds = dataset()
    train = make_loader(ds, batch_size=BATCH, shuffle=True, **(loader or {}))
    other = make_loader(ds, batch_size=BATCH, **(loader or {}))
    module, runner = Module(ds), trainer(**arguments)
    if stage == "fit":
        runner.fit(module, train, other)
    else:
        getattr(runner, stage)(module, other)
    return described(module, ds)


def described(module, ds):
    fast = isinstance(module.loaders[0], memload.FastLoader)
    stats = [one.stats() for one in (module.loaders if fast else [ds])]
    return {
        "seen": {stage: noted.epochs for stage, noted in module.seen.items()},
        "loaders": sorted({type(one).__name__ for one in module.loaders}),
        "engines": sorted({getattr(one, "engine", "stock") for one in module.loaders}),
        "samplers": [type(one.sampler).__name__ for one in module.loaders],
        "depths": [getattr(one, "depth", None) for one in module.loaders],
        "dtypes": sorted(module.dtypes),
        "native_rows": sum(one.rows for one in stats),
        "fresh": sum(one.fresh_batches for one in stats),
        "weight": module.net.linear.weight.flatten().tolist(),
    }


def compared(ours=memload.FastLoader, **arguments):
    return {"ours": fitted(ours, **arguments), "stock": fitted(stock_loader, **arguments)}


def with_a_cast():
    ours = fitted(memload.FastLoader, loader={"cast": CAST, "depth": 3}, limit_train_batches=5)
    return {"ours": ours, "stock": fitted(stock_loader, limit_train_batches=5)}


def in_a_hook():
    """Lightning notes the arguments of loaders that are made inside its hooks by wrapping their constructors."""

    def run(make_loader):
        pl.seed_everything(3, verbose=False)
        ds = dataset()

        class WithHook(Module):
            def train_dataloader(self):
                return make_loader(ds, batch_size=BATCH, shuffle=True)

        module = WithHook(ds)
        trainer().fit(module)
        return described(module, ds)

    return {"ours": run(memload.FastLoader), "stock": run(stock_loader)}


def resumed():
    """Stopped in the middle of an epoch and resumed from Lightning's checkpoint, the rest is what would have come."""

    def module_of(ds, stop_at=None):
        class Stops(Module):
            def on_train_batch_end(self, *_):
                if stop_at is not None and self.trainer.global_step == stop_at:
                    self.trainer.should_stop = True

        return Stops(ds)

    def run(folder, module, ds, checkpoint=None, callbacks=()):
        pl.seed_everything(3, verbose=False)
        generator = torch.Generator().manual_seed(8)
        loader = memload.FastLoader(ds, batch_size=BATCH, shuffle=True, generator=generator)
        runner = trainer(folder, callbacks=list(callbacks), max_epochs=2)
        runner.fit(module, loader, ckpt_path=checkpoint)
        return module.seen["train"].epochs

    ds = dataset()
    with tempfile.TemporaryDirectory() as folder:
        whole = run(folder, module_of(ds), ds)
        every_fifth = ModelCheckpoint(dirpath=folder, every_n_train_steps=5, save_top_k=-1, filename="{step}")
        before = run(folder, module_of(ds, stop_at=5), ds, callbacks=[every_fifth])
        checkpoint = next(Path(folder).glob("*step=5.ckpt"))
        after = run(folder, module_of(ds), ds, checkpoint=str(checkpoint))
    return {"whole": whole, "before": before, "after": after}


def in_fabric():
    """A loop under Fabric, which is stopped in the middle of an epoch and resumed from its checkpoint."""

    def run(checkpoint, stop_at=None, resumes=False):
        fabric = Fabric(accelerator="cpu", devices=1)
        generator = torch.Generator().manual_seed(8)
        loader = memload.FastLoader(dataset(), batch_size=BATCH, shuffle=True, generator=generator)
        fabric_loader = fabric.setup_dataloaders(loader)
        if resumes:
            fabric.load(checkpoint, {"loader": fabric_loader})
        rows = []
        for number, batch in enumerate(fabric_loader, start=1):
            rows.append(batch["id"].tolist())
            if number == stop_at:
                fabric.save(checkpoint, {"loader": fabric_loader})
                break
        return {"rows": rows, "fresh": loader.stats().fresh_batches, "native_rows": loader.stats().rows}

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = str(Path(folder) / "fabric.ckpt")
        whole, before = run(checkpoint), run(checkpoint, stop_at=5)
        return {"whole": whole, "before": before, "after": run(checkpoint, resumes=True)}


class Kept(Logger):
    """A logger that keeps what it is told."""

    name, version = "kept", "0"

    def __init__(self):
        super().__init__()
        self.told = []

    def log_metrics(self, metrics, step=None):
        self.told.append((step, metrics))

    def log_hyperparams(self, *_, **__):
        pass


def monitored():
    """A trainer that runs a monitor as its callback, one that is stopped by it, and one beside a monitor that runs."""

    def run(monitor, **arguments):
        ds, logger = dataset(), Kept()
        runner = trainer(callbacks=[monitor.lightning_callback()], logger=logger, **arguments)
        loader = memload.FastLoader(ds, batch_size=BATCH)
        try:
            runner.fit(Module(ds), loader)
        except memload.MemoryStopError as error:
            return str(error), logger, runner
        return "", logger, runner

    whole = memload.Monitor(interval=0.01, show=False)
    _, logger, runner = run(whole)
    told = {
        "last": [whole.samples[-1].step, whole.samples[-1].epoch],
        "steps": runner.global_step,
        "logged": sum("memory/held_gb" in metrics for _, metrics in logger.told),
        "ended": not whole.running and whole.summary is not None,
        "pickled": type(pickle.loads(pickle.dumps(whole.lightning_callback()))).__name__,
    }
    full = memload.Monitor(interval=60, warn_at=None, stop_at="1MB", show=False)
    stopped, _, runner = run(full)
    told |= {"stopped": stopped, "steps_before_the_stop": runner.global_step, "ended_then": not full.running}
    with memload.Monitor(interval=60, show=False) as own:
        run(own, max_epochs=1)
        return {**told, "left_running": own.running}


def drawn(kind):
    """A sampler that is made before the processes know each other, and shares its rows out by itself."""
    pl.seed_everything(3, verbose=False)
    ds = dataset()
    sampler = drawing_sampler(kind)
    module = Module(ds)
    trainer(limit_val_batches=0).fit(module, memload.FastLoader(ds, batch_size=BATCH, sampler=sampler))
    return {**described(module, ds), "common": common_orders(kind, 2)}


everywhere = {
    "fit": compared,
    "the batch fetcher": lambda: compared(fetcher_loader),
    "overfit_batches": lambda: compared(overfit_batches=3),
    "a cast": with_a_cast,
}
alone = {
    "a hook": in_a_hook,
    "limits": lambda: compared(limit_train_batches=4, limit_val_batches=0.5),
    "fast_dev_run": lambda: compared(fast_dev_run=2),
    "validate": lambda: compared(stage="validate"),
    "test": lambda: compared(stage="test"),
    "predict": lambda: compared(stage="predict"),
    "workers": lambda: compared(loader={"num_workers": 2, "persistent_workers": True}, limit_val_batches=2),
    "resume": resumed,
    "fabric": in_fabric,
    "monitor": monitored,
}
two = {
    **everywhere,
    "weighted": lambda: drawn("weighted"),
    "mixed": lambda: drawn("mixed"),
    "blocks": lambda: drawn("blocks"),
}
report({"ddp": lambda: {name: run() for name, run in two.items()}} if DEVICES > 1 else {**everywhere, **alone})
