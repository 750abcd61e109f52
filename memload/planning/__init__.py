"""memload.plan: what a run will take of RAM, GPU and disk, before it begins.

`request` is what is asked, on which `machine` and for data of which `shape`; `accounts` adds up `account` by `account`
what `placement`, loaders (`loader_bytes`, `transform_bytes`, `stock_bytes`) and the GPU (`gpu_account`) take.
`planner` makes the `result`, with `alternatives` where it does not fit.
"""
