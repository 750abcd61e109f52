"""The path to a GPU, and what is to be known of one.

Batches on their way: `landing` and `pinned_batches` (gathered into pinned memory), `placing`, `casting`,
`device_batches`, `static_buffers`. Data that lies there, or where a GPU reads it: `to_device`, `bringing`, `near` and
the modules named after it, `pinned_memory`. All of it is written against `interface`: torch's (`torch_interface`) or a
`simulated` device. `cuda_module` and `kernels` are memload's own.
"""
