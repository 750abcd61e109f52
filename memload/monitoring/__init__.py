"""memload.Monitor: observes memory while a program runs, and finds the cause of growth.

`monitor` is the class that users create, and `run` is one run of it, with its thread. `samples` takes samples of
memory: `processes` reads that of processes, `shared_segments` shared memory, and `gpu_samples` that of GPUs; `pacing`
limits the cost of expensive figures. `diagnosis` finds causes of growth, and `kept_graphs` autograd graphs that the
loop keeps. `marks` are the limits at which the monitor acts; `own_memory` counts memload's own memory and frees it.
`log` writes samples to a file, `metric_logs` sends them to loggers, `live_view` shows them in a terminal, `plots` draws
them, and `summary` sums them up. `lightning` is the callback of Lightning's Trainer.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader,
writing, graphs, images, caching.
"""
