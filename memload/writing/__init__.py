"""Write rows of any kind as a directory of shards.

`write` is `memload.write`, and `writer` is `ShardWriter`. `row_sources`, `ragged_row_source` and `conversion` provide
rows, `stream` cuts them into shards, and `growing_set` and `unfinished` hide a set until it is complete.
Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader.
"""
