"""Fields that are compressed in shards.

`codec` is a codec, also as an index states it, `by_field` which one each field gets, and `choice` takes the
best for a sample. `blocks` and `fields` write and read encoded blocks.
"""
