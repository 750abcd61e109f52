"""Where the rows of a dataset are kept while they are read.

`tier` names the tiers, `choosing` takes one by sizes and what is free. `placing` puts fields on another tier: by
`loading` rows into memory, or by other storages. `pressure` gives caches back.
"""
