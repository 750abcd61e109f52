"""Which rows come next.

`row_plan` plans a pass: of `draws` where the sampler is known (`permutations`, `weighted_draws`), of `pulls` where it
is not, of `batch_streams` where batches are known as arrays. `samplers` and `budget_batches` are memload's own
samplers. `batch_sizes`, `planned_rows` and `overtaking` say what of a plan is to come.
"""
