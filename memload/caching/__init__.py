"""Results of functions of rows, computed once and stored.

`map_cache` is ``ds.map(fn).cache(...)``, and `scoring` is `memload.score`. `map_results` computes the results of
functions of samples, `samples` and `returned` turn them into rows, and `forms` finds the form of their fields.
`computed` keeps them in RAM or writes them as shards, and `cache_files` lists and removes entries. `derivation` makes
the key of an entry from `content`, which identifies rows, and `fingerprints`, which hashes functions.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader,
writing, graphs, images.
"""
