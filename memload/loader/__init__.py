"""FastLoader, its native passes, its state, and its passes on torch's own machinery.

`fast_loader` defines `FastLoader`, and `arguments` what those of its arguments mean that concern the dataset.
`composing` begins a native pass: it reads the dataset and builds the layers; `native_pass` runs it, `history` records
the passes of a loader, and `access` is the interface through which other parts of memload use a loader. `state` saves
and resumes the position of a loop, and `state_checks` validates a saved state. `fallback_passes` is a pass of torch's
own machinery over rows, `fallback_iterables` over an iterable dataset, and `fallback_worker_states` with states of
worker processes. `accumulation` is `memload.accumulate`, `accelerate` is `memload.prepare`.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset.
"""
