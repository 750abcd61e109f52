"""The native engine: one pass, what it reads, and how.

`readers` says which datasets are native (those left `unaltered`) and makes a `source` of them; `collate_function` says
it of collate functions. `passes` runs a pass, `pipelined` one native pipeline; `cold` and `slot_room` decide on its
reads and its memory. `watches`, `changes` and `by_the_dataset` are for data that changes meanwhile. `door` serves
other libraries.
"""
