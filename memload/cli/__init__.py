"""The command line: `main`, one module for each command, and the modules that they share.

`options` declares the arguments of all commands without torch; the module of a command is imported when it runs. The
commands are `bench`, `cache`, `demo`, `doctor`, `info`, `monitor`, `plan`, `verify` and `write`. `cast_options` makes
casts of options, `by_set` reads options for one data set or for all, `source_options` opens sources, and
`trained_options` finds the models that options name. `measure` measures times and memory, `prediction` compares a plan
with a run, and `stock_loops` are loops without memload; `bench`, `demo`, `plan` and the scripts in
benchmarks/ use them.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader,
writing, graphs, images, caching, monitoring, planning.
"""
