"""Passes of torch's own machinery.

`passes` counts batches and resumes samplers, `iterables` and `worker_states` do so for states of datasets, here and in
worker processes. `arguments` are those that only this machinery follows.
"""
