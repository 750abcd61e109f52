"""Sets of shards and Zarr arrays in object stores, read through blocks that are kept on a local disk or in RAM.

`objects` reads and writes objects, and `link` runs the requests; `block_cache` keeps blocks in `mirrors`, and
`cache_folder` is the folder of these, whose files `descriptors` opens. `opening` opens what lies at an address:
`remote_shards` a set, `remote_zarr` arrays, whose chunks are `packed_objects`. `store_parts` writes a set, by way of an
`upload_folder`.
"""
