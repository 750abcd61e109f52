"""Many datasets at once.

`datasets` is `memload.concat` and `group_collate`, `source` which rows of a batch go into which group, `batches`
gathers the groups.
"""
