"""The GPU: batches on their way to it, data that lies there, and modules that take turns on it.

Loaders ask `on_request`, so that nothing else here is imported for batches that stay on the CPU.

Devices: `devices` says which one ``device=`` means and what its errors mean, `memory` what its memory holds. All of the
rest is written against `interface`, of which `torch_interface` is that of GPUs; tests have a simulated one.
Batches on their way: `destinations` offers them to a pass. `destination_buffers` gathers into pinned memory and copies
from there, `shared_frames` sends windows as frames, `placing` copies whole batches, `device_batches` casts and hands
out, `static_buffers` keep addresses.
Data that lies there, or where a GPU reads it: `loading` loads the stored `frames` into a table, whose rows are
`resident` fields; `pinned_memory` is such a table in RAM. `resident_batches` are gathered out of it.
Kernels: `cuda_module` is memload's own module, `kernels` calls it, `casting` and `gathering` use that on tensors or
stand in for it by torch, `cast_stim` is that for pixels.
Modules that take turns: `offload` moves a frozen one to a device and back, its `weights` whole or `layerwise`.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine.
"""
