"""Functions of users, run ahead of the loop.

`recipe` is what is done to samples and batches, `mapped` is ``ds.map(fn)``, `threads` run both, as many as `pace`
finds best. `seeding`, `reseeding`, `drawing_free` and `captured` are about their random numbers, `surroundings` about
what a thread finds around it, `used_again` about memory.
"""
