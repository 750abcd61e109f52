"""From stored elements to the numbers a network takes.

`rule` defines what a `Cast` does. `native` does it to tensors in C++, `batches` to finished batches of the stock
machinery; `augment` draws crops and flips. `cast_stim` and `float32_view` are the operation and the view of that name.
"""
