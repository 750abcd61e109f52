"""A path, or arrays, to fields: one module for each format, and `formats`, the table of them.

Rows stay where they are; only headers are read.
"""
