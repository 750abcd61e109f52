"""Rows that differ in length: in memory, in shards and in batches."""
