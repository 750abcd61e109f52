"""Directories of shards: read and written.

`index` and `safetensors_header` are the format, `reading` opens and verifies. `writing` is `memload.write`, `writer`
is `ShardWriter`: `supplies` and `conversion` give rows, `rows` their bytes, `stream` and `shard_file` put them into
shards, and `staging`, `growing_set` and `unfinished` hide a set until it is whole.
"""
