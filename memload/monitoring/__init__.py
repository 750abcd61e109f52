"""memload.Monitor: memory watched while a program runs.

`monitor` is the user's, `watching` its thread. `samples` looks at memory (`processes`, `gpu_samples`, `row_caches`,
`loops`), `diagnosis` finds causes (`kept_graphs`), `shrinking` acts on them at `marks`. `log`, `live_view`, `plots`,
`metric_logs`, `summary` and `lightning` are where figures go.
"""
