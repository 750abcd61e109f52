"""Folders of pictures, written as shards."""
