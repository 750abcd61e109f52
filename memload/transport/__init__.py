"""Columns on their way to another process: `columns` of `storages`, and the `grids` of arrays in tiles."""
