"""Functions of users, run ahead of the loop.

`transform_pipeline` is what is done to samples and batches, `threads` run it, as many as `concurrency` finds best.
`seeding`, `random_free` and `captured` are about their random numbers, `thread_context` about what a
thread finds around it, `buffer_reuse` and `room` about memory.
"""
