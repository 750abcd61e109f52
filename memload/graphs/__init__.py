"""Datasets of graphs, and batches of them.

`datasets` defines the datasets, and `files` writes and opens them. `lists` checks single graphs and joins them,
`layout` says how each attribute of graphs becomes that of a batch, and `collating` makes batches. `pyg` makes PyTorch
Geometric's objects. The package columns holds the rules by which the name of an attribute determines its kind.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader,
writing.
"""
