"""Sets of shards and Zarr arrays in object stores, read through blocks that are kept on a local disk or in RAM.

`addresses` says where a set lies; `objects` reads objects, and `writable_objects` writes them. `repeating` makes
requests again; `link` runs them, on a loop and on `request_threads`, as many at once as `admission` lets in.
`block_cache` keeps blocks, which a `run_fetch` asks for, in `mirrors`, and `cache_folder` is the folder of these on a
`cache_disk`, whose files `descriptors` opens, which has `unfinished` folders while sets are made, and empties sets that
have `damages`.
`opening` opens what lies at an address: `remote_shards` a set, `remote_zarr` arrays, whose chunks are `packed_objects`.
`store_parts` writes a set, by way of an `upload_folder`.
"""
