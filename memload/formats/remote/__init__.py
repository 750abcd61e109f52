"""Sets of shards in object stores, read through blocks that are kept on a local disk or in RAM, and written to stores.

`objects` reads and writes objects, and `link` runs the requests; `block_cache` keeps blocks in `mirrors`, and
`cache_folder` is the folder of these, whose files `descriptors` opens; `remote_shards` opens a set. `store_parts`
writes one, by way of an `upload_folder`.
"""
