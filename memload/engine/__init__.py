"""The native engine: one pass, what it reads, and how.

`readers` says which datasets are native (those that nobody has altered) and makes a `gather_spec` of them;
`collate_function` says it of collate functions; `carrying_collate` carries casts and transforms to loaders that others
build.
`request` is what a pass is asked for and where its batches go, `settings` what that is worked out to: sizes, depth,
threads, room, how files are read. A `gatherer` makes the batches of a pass; `on_cpu` gathers them into slots on the
CPU by one native pipeline, and is the destination that leaves them there. `mutation_guards` tell whether data changes
meanwhile, and `guarded_batches` has the dataset itself answer then. `batch_fetcher` serves other libraries. `iterators`
are what the loop holds, `observers` have a turn between two batches.

What a batch is made of: `layout` is its structure, `gathered` a batch that is still a list of samples, `collating`
makes batches of single samples as torch's default_collate would, `cast_batches` casts finished ones. The folder
transforms runs functions of users, tiers keeps rows where they are read fast.

Imports only from: the root modules, memory, columns, casts, sampling, formats.
"""
