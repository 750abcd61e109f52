"""Rows that are computed once and kept.

`map_cache` is ``ds.map(fn).cache(...)``, `scoring` is `memload.score`; `map_results`, `computed` and `cache_files`
compute rows and keep them. `derivation` makes the key under which they are found, of `content` (rows) and
`fingerprints` (functions).
"""
