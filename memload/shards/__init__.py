"""Directories of shards: read and written."""
