"""Rows that differ in length, and text.

`forms` are the batches, `samples` the rows, `option` the loader's ``ragged=``. `fields` are their columns, `transport`
takes these to other processes. `spec` is what an index says of them, `shards` reads them from shards, and `supply`,
`writing` and `shard_file` bring them there.
"""
