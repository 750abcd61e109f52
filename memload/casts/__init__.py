"""Convert stored elements to the numbers that a network takes.

`rule` defines what a `Cast` does, `native` does it to tensors in C++, and `augment` draws crops and flips.

Imports only from: the root modules, memory, columns.
"""
