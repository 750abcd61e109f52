"""Files: one module for each format, and `formats`, the table of them.

Rows stay where they are; only headers are read. The folder shards reads and describes directories of shards, codecs
compresses fields in them, and recordings reads files with clocks and spikes; `costs` says what reading one row takes.

Imports only from: the root modules, memory, columns, casts, sampling.
"""
