"""The Trainer of transformers, which builds stock loaders of the datasets that it is given."""

import os
import tempfile

import torch
import transformers
from common import BATCH, Net, Noted, Plain, dataset, report
from torch.utils.data import default_collate

import memload

transformers.logging.set_verbosity_error()


class Model(torch.nn.Module):
    """A model as the Trainer calls it; notes what it is called with."""

    def __init__(self, ds):
        super().__init__()
        self.net = Net()
        self.noted = {True: Noted(ds), False: Noted(ds)}
        for noted in self.noted.values():
            noted.begin()

    def forward(self, stim, id, labels=None):  # noqa: A002 - named as the field is
        self.noted[self.training].see({"stim": stim, "id": id})
        loss = self.net(stim)
        return {"loss": loss, "logits": id[:, None]}


class OnTheEngine(transformers.Trainer):
    """What docs/frameworks.md shows: FastLoader with all that the Trainer asks for."""

    def get_train_dataloader(self):
        loader = memload.FastLoader(
            self.train_dataset, batch_size=self._train_batch_size, sampler=self._get_train_sampler()
        )
        self.fast = memload.prepare(self.accelerator, loader)
        return self.fast


def trained(kind, wrapped, folder, *, checkpoint=None, **arguments):
    transformers.set_seed(4)
    ds = dataset()
    model = Model(ds)
    collate = {} if "remove_unused_columns" not in arguments else {"data_collator": default_collate}
    arguments = {"num_train_epochs": 2, "save_strategy": "no", **arguments}
    settings = transformers.TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        dataloader_pin_memory=False,
        **arguments,
    )
    trainer = kind(model, settings, train_dataset=wrapped(ds), eval_dataset=wrapped(ds), **collate)
    trainer.train(resume_from_checkpoint=checkpoint)
    in_training = ds.stats().rows + (trainer.fast.base_dataloader.stats().rows if hasattr(trainer, "fast") else 0)
    predicted = trainer.predict(trainer.eval_dataset).predictions[-1].flatten().tolist()
    return {
        "train": model.noted[True].epochs[0],
        "eval": model.noted[False].epochs[0],
        "predicted": sorted(predicted),
        "train_rows": in_training,
        "native_rows": ds.stats().rows,
        "fresh": ds.stats().fresh_batches,
        "weight": model.net.linear.weight.flatten().tolist(),
    }


def compared(kind=transformers.Trainer, **arguments):
    with tempfile.TemporaryDirectory() as folder:
        ours = trained(kind, lambda ds: ds, folder, **arguments)
        return {"ours": ours, "stock": trained(transformers.Trainer, Plain, folder, **arguments)}


def resumed():
    def run(wrapped):
        with tempfile.TemporaryDirectory() as folder:
            trained(transformers.Trainer, wrapped, folder, max_steps=5, save_strategy="steps", save_steps=5)
            return trained(transformers.Trainer, wrapped, folder, checkpoint=f"{folder}/checkpoint-5")

    return {"ours": run(lambda ds: ds), "stock": run(Plain)}


everywhere = {
    "as it is": compared,
    "default_collate": lambda: compared(remove_unused_columns=False),
    "FastLoader": lambda: compared(OnTheEngine),
}
alone = {
    "resume": resumed,
    "workers": lambda: compared(dataloader_num_workers=2, num_train_epochs=1),
}
report({**everywhere, **alone} if "WORLD_SIZE" not in os.environ else everywhere)
