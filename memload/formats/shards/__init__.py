"""Directories of shards: the format, and how it is read.

`index` and `safetensors_header` are the format, `reading` opens and verifies. `rows` are rows on their way to a file,
`shard_file` and `ragged_shard_file` put them into a shard, and `staging` hides a set until it is whole.
"""
