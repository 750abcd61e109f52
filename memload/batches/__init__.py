"""What a batch is made of, and how samples become one.

`layout` is the structure of a batch, `gathered` a batch that is still a list of samples, `collating` makes batches of
single samples as torch's default_collate would (`collate_rules`), `iterators` is what all passes have in common.
"""
