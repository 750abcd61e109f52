"""Predicts the memory that a run takes, and finds the largest batch that fits.

`planner` is `memload.plan`: `request` holds its arguments, `machine` the free memory, `shape` the form of data that
do not exist yet. `network` finds what an epoch fetches from stores, `placement` the bytes of the rows on their tier,
`loader_bytes` those of a loader's pass,
`loader_slots` those of its slots at each batch size, `transform_bytes` those of functions, `gpu_batches` those of
batches on a GPU, and `gpu_account` those of training, of which `distributed` and `sharded` find the share of one rank.
`accounts` adds them up, each sum being an `account`. `result` is the returned plan, and `alternatives` finds settings
that fit. `plots` draws accounts, and a monitor's log over them. Of several data sets, `sets` says which there are,
`sets_planner` plans all together, `mixture` finds how full the slots of mixed batches become, and `sets_alternatives`
which set goes where.

`batch_size` is `compute_batch_size`, and `memory_budget` its result; `fitting` is `fit`, with `fit_bytes` and
`relative_times`, and `probing` is `probe`. `frozen` finds what trains nothing. `model_bytes` and `optimizer_bytes`
compute bytes by arithmetic. `measuring` runs `steps` on `variants` of a batch, if possible on `weightless` models, in
one of the `precisions`; `allocations` observes them, and `curves` extends their bytes to larger batches. `trials` runs
whole steps until memory runs out, `recomputing` applies checkpointing, and `compiling` times compiled steps.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader,
writing, graphs, images, caching, monitoring.
"""
