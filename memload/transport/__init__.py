"""Columns on their way to another process."""
