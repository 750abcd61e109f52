"""Fields that are compressed in shards.

`codec` is a codec, `entry` what an index says of it, `by_field` which one each field gets. `auto` samples a source for
codec="auto", and `choice` takes the best for a sample. `blocks` and `fields` write and read encoded blocks.
"""
