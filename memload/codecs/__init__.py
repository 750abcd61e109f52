"""Fields that are compressed in shards."""
