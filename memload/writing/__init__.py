"""memload.write: whatever holds rows, as a directory of shards.

`write` is `memload.write`, `writer` is `ShardWriter`: `row_sources`, `ragged_row_source` and `conversion` give rows,
`stream` puts them into shards, `growing_set` and `unfinished` hide a set until it is whole.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader.
"""
