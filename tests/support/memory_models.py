"""Models of several kinds, each with a sample of its batches."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memload


class Transformer(nn.Module):
    """Two layers over tokens; with `again`, their activations are computed a second time in the backward pass."""

    def __init__(self, *, again=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.embed = nn.Embedding(100, 32)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).layers
        self.again = again

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x @ self.embed.weight.t()


class LargeTable(nn.Module):
    """An embedding whose gradient is larger than what small batches take."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20_000, 32), nn.Linear(32, 64)

    def forward(self, words):
        return self.head(self.table(words).mean(1)).tanh()


class Contrastive(nn.Module):
    """Compares each row with each: what it takes grows with the square of the rows."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(32, 48), nn.Linear(32, 48)

    def forward(self, left, right):
        return (self.left(left) @ self.right(right).t()).log_softmax(-1)


class GraphNet(nn.Module):
    """Messages along edges, three times, and one number for each graph."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(9, 32), nn.Linear(32, 32), nn.Linear(32, 32)])
        self.on_edges, self.head = nn.Linear(3, 32), nn.Linear(32, 1)

    def forward(self, graphs):
        x, (sources, targets) = graphs.x, graphs.edge_index
        edges = self.on_edges(graphs.edge_attr)
        for layer in self.layers:
            x = layer(x)
            messages = (x[sources] + edges).relu()
            x = x + torch.zeros_like(x).index_add(0, targets, messages)
        count = len(graphs.ptr) - 1
        pooled = torch.zeros(count, 32, dtype=x.dtype).index_add(0, graphs.batch, x)
        return self.head(pooled).squeeze(1)


def convolutional():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)),
    )


def graph_batch(nodes, edges, seed=0):
    """A batch of graphs with so many nodes and edges each."""
    generator = torch.Generator().manual_seed(seed)
    ptr = torch.tensor([0, *nodes]).cumsum(0)
    parts = [
        torch.randint(n, (2, m), generator=generator) + begin for n, m, begin in zip(nodes, edges, ptr, strict=False)
    ]
    return memload.GraphBatch(
        x=torch.rand(int(ptr[-1]), 9, generator=generator),
        edge_index=torch.cat(parts, dim=1),
        batch=torch.repeat_interleave(torch.arange(len(nodes)), torch.tensor(nodes)),
        ptr=ptr,
        edge_attr=torch.rand(sum(edges), 3, generator=generator),
        y=torch.rand(len(nodes), generator=generator),
    )


# name: model, sample, rows to foretell
BY_ROWS = {
    "convolutional": (convolutional, torch.rand(2, 3, 16, 16), 48),
    "transformer": (Transformer, torch.randint(100, (1, 24)), 40),
    "checkpointed": (lambda: Transformer(again=True), torch.randint(100, (1, 24)), 40),
    "large embedding": (LargeTable, torch.randint(20_000, (3, 12)), 900),
    "contrastive": (Contrastive, {"left": torch.rand(2, 32), "right": torch.rand(2, 32)}, 300),
}
