"""What steps of training take of memory, and how large a batch may be.

`batch_size`, `fitting` and `probing` are `compute_batch_size`, `fit` and `probe`. `model_bytes` and `optimizer_bytes`
are arithmetic; `measuring`, `steps` and `trials` run steps on `variants` of a batch, on `weightless` models where it
can be, and see their `allocations`; `curves` go through what they took.
"""
