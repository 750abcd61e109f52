"""Cases of `memory_truth.py`: graph networks that train on the CPU, over batches whose graphs differ in size."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from truth_case import Case
from truth_training import BLOCKS

import memload

GRAPHS, FEATURES, WIDTH = 2000, 16, 256
EPOCHS = 1
SIZE = 256  # graphs of a batch
BUDGET = 24_000  # edges of a batch, about as many as 256 graphs have


def make_graphs(folder: Path, graphs: int = GRAPHS) -> None:
    """Graphs of 4 to 300 nodes, most of them small, with about three edges for each node."""
    from torch_geometric.data import Data

    draw = np.random.default_rng(0)
    sizes = np.clip(draw.lognormal(3.2, 0.7, graphs), 4, 300).astype(int)

    def graph(nodes: int) -> Data:
        edges = torch.from_numpy(draw.integers(0, nodes, (2, 3 * nodes)))
        x = torch.from_numpy(draw.random((nodes, FEATURES), dtype=np.float32))
        return Data(x=x, edge_index=edges, y=torch.rand(1))

    memload.write_graphs(folder / "graphs", map(graph, sizes.tolist()), progress=False)


class Stack(nn.Module):
    """Three layers, pooling, and one number for each graph."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        widths = [FEATURES, WIDTH, WIDTH, WIDTH]
        self.layers = nn.ModuleList(map(layer, widths, widths[1:]))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss."""
        from torch_geometric.nn import global_mean_pool

        x = batch.x
        for layer in self.layers:
            x = layer(x, batch.edge_index).relu()
        return nn.functional.mse_loss(self.head(global_mean_pool(x, batch.batch)).squeeze(1), batch.y)


class Autoencoder(nn.Module):
    """A VGAE of GCN layers."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import VGAE, GCNConv

        class Encoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.shared, self.mu, self.logstd = GCNConv(FEATURES, WIDTH), GCNConv(WIDTH, 64), GCNConv(WIDTH, 64)

            def forward(self, x: torch.Tensor, edges: torch.Tensor) -> Any:
                x = self.shared(x, edges).relu()
                return self.mu(x, edges), self.logstd(x, edges)

        self.vgae = VGAE(Encoder())

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss."""
        z = self.vgae.encode(batch.x, batch.edge_index)
        found: torch.Tensor = self.vgae.recon_loss(z, batch.edge_index) + self.vgae.kl_loss() / batch.num_nodes
        return found


def stack(name: str) -> nn.Module:
    """A stack of one kind of layers."""
    import torch_geometric.nn

    return Stack(getattr(torch_geometric.nn, name))


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "GCN": functools.partial(stack, "GCNConv"),
    "GAT": functools.partial(stack, "GATConv"),
    "GATv2": functools.partial(stack, "GATv2Conv"),
    "VGAE": Autoencoder,
}


def batches(graphs: Any, budget: int | None) -> dict[str, Any]:
    """The arguments of the loader that decide its batches."""
    common: dict[str, Any] = {"collate_fn": memload.graph_collate}
    if budget is None:
        return {**common, "batch_size": SIZE, "shuffle": True}
    return {**common, "batch_sampler": memload.BudgetBatchSampler(graphs.sizes().edges, budget)}


def predict(folder: Path, model: str, budget: int | None, sample: int | None) -> dict[str, Any]:
    """What the plan states; with `sample`, from a batch of the first so many graphs."""
    graphs, net = memload.open_graphs(folder / "graphs"), MODELS[model]()
    given = {} if sample is None else {"sample": memload.graph_collate([graphs[row] for row in range(sample)])}
    plan = memload.plan(
        graphs,
        model=net,
        loss=net,
        optimizer=torch.optim.AdamW,
        device="cpu",
        ram="16GB",
        **given,
        **batches(graphs, budget),
    )
    return {"predicted": plan.ram.predicted}


def run(folder: Path, model: str, budget: int | None, sample: int | None) -> None:  # noqa: ARG001 - as `predict`
    """Some epochs of training."""
    torch.set_num_threads(2)
    graphs, net = memload.open_graphs(folder / "graphs"), MODELS[model]()
    stepper = torch.optim.AdamW(net.parameters())
    loader = memload.FastLoader(graphs, **batches(graphs, budget))
    for _ in range(EPOCHS):
        for batch in loader:
            stepper.zero_grad()
            net(batch).backward()
            stepper.step()
    gc.collect()


def case(
    model: str,
    budget: int | None = None,
    sample: int | None = None,
    *,
    as_it_is: bool = False,
    quick: bool = False,
) -> Case:
    """A run, with the variables that plans of training on the CPU name, or with glibc's heap as it is."""
    settings = {"model": model, "budget": budget, "sample": sample}
    of_batch = f"{SIZE} graphs" if budget is None else f"at most {budget:,} edges"
    scaled = "" if sample is None else f", from a sample of {sample}"
    heap = ", heap as it is" if as_it_is else ""
    return Case(
        f"graphs: {model}, {of_batch}{scaled}{heap}",
        functools.partial(run, **settings),
        functools.partial(predict, **settings),
        make_graphs,
        environment={} if as_it_is else BLOCKS,
        quick=quick,
    )


CASES = [
    case("GCN"),
    case("GCN", sample=16),
    case("GAT", quick=True),
    case("GAT", sample=16),
    case("GAT", BUDGET),
    case("GATv2"),
    case("GATv2", BUDGET),
    case("VGAE"),
    case("VGAE", BUDGET),
    *(case(model, as_it_is=True) for model in MODELS),
]
