"""The order of rows: samplers, plans of passes, and positions to resume from.

`row_plan` plans a pass and has its progress. Where memload knows the sampler, `torch_draws` and `weighted_draws` make
its draws and `draws` puts them in order. `pulls` is used where memload knows only the sampler's iterator, and
`batch_streams` where batches are known as arrays. `samplers` and `budget_batches` (with the arithmetic of
`budget_filling`) are memload's own samplers. `ranks` shares rows out over ranks. `overtaking` tracks index batches that
the loop still has to get where batches may arrive out of order. `checks`, `position_checks` and `worker_checks`
validate states.

Imports only from: the root modules, memory, columns, casts.
"""
