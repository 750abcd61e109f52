"""Datasets: the objects that users hold, and the functions that make new datasets of them.

`dataset` defines `Dataset`. `opening` makes one from files, from arrays or from a `datasets.Dataset`. `tiered`
moves a dataset to another tier, and `to_device` to a GPU. `joining` pairs the rows of two datasets by keys,
`zipping` puts fields side by side, and `groups` appends rows and collates batches by dataset; `grouped_spec`
describes such batches for the engine, and `group_batches` gathers them. `mapped` and `float32_view` compute their
samples.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device.
"""
