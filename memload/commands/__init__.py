"""The command line: one module for each command, and what they share.

`source_options` and `trained_options` are options of several commands. `measure`, `prediction` and `stock_loops` are
what `bench`, `demo` and `plan`, and the scripts in benchmarks/, measure with.
"""
