"""A net of uneven shapes, spread over real processes, and the bytes that one rank of it has."""

import contextlib
import json
import time
import warnings

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.up, self.down = nn.Linear(side, 2 * side), nn.Linear(2 * side, side)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Blocks between an input and a head, none of whose sides two or three ranks divide."""

    def __init__(self, side=133, blocks=12, features=31):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(features, side), nn.Linear(side, features)
        self.blocks = nn.ModuleList(Block(side) for _ in range(blocks))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def spread(net, strategy, precision="float32"):
    """Return the net as the strategy wraps it, and its optimizer."""
    if strategy.startswith("fsdp2"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if precision == "bf16-mixed" else None)
        for block in net.blocks:
            fully_shard(block, mp_policy=policy, reshard_after_forward=strategy != "fsdp2-zero2")
        fully_shard(net, mp_policy=policy)
        return net, torch.optim.AdamW(net.parameters())
    options = {"ddp with views": {"gradient_as_bucket_view": True}, "ddp with small buckets": {"bucket_cap_mb": 1}}
    model = nn.parallel.DistributedDataParallel(net, **options.get(strategy, {}))
    if strategy == "ddp-zero1":
        with warnings.catch_warnings():  # torch's own, of torch.jit.script
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import ZeroRedundancyOptimizer

        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    return model, torch.optim.AdamW(model.parameters())


def measured(strategy, precision="float32", rows=64):
    """Return the bytes of one rank after two steps, and the model and optimizer."""
    net = Net()
    model, optimizer = spread(net, strategy, precision)
    batch = torch.rand(rows, 31)

    def step():
        model(batch).mean().backward()

    for _ in range(2):
        optimizer.zero_grad()
        step()
        optimizer.step()
    peaks = []
    with waits_until_gloo_lets_go():
        for _ in range(4):
            optimizer.zero_grad()
            peaks.append(_peak(step))
    peak = min(peaks)
    buckets = {"gradient buckets": bucket_bytes(model)} if strategy.startswith("ddp") else {}
    states = getattr(optimizer, "optim", optimizer).state.values()
    found = {
        "parameters": _bytes(net.parameters()),
        "gradients": _bytes(p.grad for p in net.parameters()),
        "optimizer states": _bytes(value for state in states for value in state.values()),
        "peak": peak + _bytes(net.parameters()),
        **buckets,
    }
    return found, model, optimizer


@contextlib.contextmanager
def waits_until_gloo_lets_go():
    """Let each wait for an exchange last 5 ms longer: gloo's threads let go of its tensors only after it has ended.

    Without it, a step that took 2.5 MB at least took up to 4.4 MB, on a machine that was busy otherwise.
    """
    wait = torch.distributed.Work.wait

    def longer(work, *args):
        done = wait(work, *args)
        time.sleep(0.005)
        return done

    torch.distributed.Work.wait = longer
    try:
        yield
    finally:
        torch.distributed.Work.wait = wait


def _bytes(tensors):
    storages = [getattr(t, "_local_tensor", t).untyped_storage() for t in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def bucket_bytes(model):
    """Return the bytes of the buckets that DistributedDataParallel says it has, once rebuilt, beside gradients."""
    said = model._get_ddp_logging_data()
    assert said["has_rebuilt_buckets"]
    return 0 if said["gradient_as_bucket_view"] else sum(map(int, said["rebuilt_bucket_sizes"].split(",")))


def _peak(step):
    """Return the most bytes that torch's allocator gave out in a step, of all threads, and did not get back."""
    live = peak = 0
    for nbytes in _allocations(step):
        live += nbytes
        peak = max(peak, live)
    return peak


def _allocations(step):
    """Return the bytes of each allocation of torch's allocator in a step, negative where memory was given back."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def planned(model, optimizer, strategy=None, world_size=None, precision="float32", rows=64):
    """Return the lines of the plan of this run, by name."""
    import memload

    data = memload.DatasetShape(1000, {"x": ("float32", (31,))})
    plan = memload.plan(
        data,
        rows,
        model=model,
        optimizer=optimizer,
        loss=lambda batch: model(batch["x"]).mean(),
        strategy=strategy,
        world_size=world_size,
        precision=precision,
        device="cpu",
        ram="8GB",
    )
    return {line.name: line.predicted for line in plan.ram.lines}


def main(rank, ranks, meeting, cases):
    """Print what each case takes on this rank, and what a plan of the wrapped model says."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    found = {}
    for strategy, precision in cases:
        seen, model, optimizer = measured(strategy, precision)
        found[f"{strategy}, {precision}"] = seen, planned(model, optimizer, precision=precision)
        again, _, _ = measured(strategy, precision)
        assert again["parameters"] == seen["parameters"]
        model(torch.rand(4, 31)).mean().backward()  # a plan leaves the wrapped model able to train
    print(json.dumps(found))
    torch.distributed.destroy_process_group()
