"""Datasets of graphs.

`lists` checks single graphs and joins them, `layout` knows how attributes become those of a batch, `collating` makes
batches, `datasets` are the datasets, `files` writes and opens them. `pyg` alone imports PyTorch Geometric.
"""
