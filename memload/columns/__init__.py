"""Fields, rows, and how rows are stored.

`fields` defines the fields of a dataset. `ragged_fields` defines fields whose rows differ in length; `ragged_forms`
has their batches and `ragged_samples` their rows. `windows` makes rows of several frames. `numbers` checks row
numbers, `borders` marks the rows at which recordings begin, and `matching` finds rows by `key_columns`.
`storage_terms` describes how rows are stored, and `blocks` reads rows whose elements are stored together. `parts` says
what columns are made of, and puts them on other storages; `pickled_columns` and `pickled_storages` send them to other
processes. `held_rows` collects rows in memory. `graph_attributes` has the rules for rows that are graphs,
`collate_rules` those of torch's default_collate. `foreign_names` makes the errors for names of other libraries.

Imports only from: the root modules, memory.
"""
