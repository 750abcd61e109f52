"""The order of rows: samplers, plans of passes, and positions to resume from.

`row_plan` plans a pass. It uses `draws` where memload knows the sampler (with `torch_draws` and `weighted_draws`),
`pulls` where it knows only the sampler's iterator, and `batch_streams` where batches are known as arrays. `samplers`
and `budget_batches` (with the arithmetic of `budget_filling`) are memload's own samplers. `ranks` shares rows out over
ranks. `overtaking` tracks index batches that the loop still has to get where batches may arrive out of order. `checks`,
`position_checks` and `worker_checks` validate states.

Imports only from: the root modules, memory, columns, casts.
"""
