"""The GPU: destinations of batches, resident data, kernels, and offloaded modules.

Loaders use `on_request`, so nothing else here is imported for batches that stay on the CPU.

Devices: `devices` resolves ``device=`` and explains errors; `memory` reads the bytes of a GPU's memory. All others use
`interface`; `torch_interface` implements it for GPUs, with `streams` that each user has alone, and tests have a
simulated device.
Destinations: `destinations` offers them to a pass. `destination_buffers` gathers into pinned memory and copies from
there, `shared_frames` sends windows as frames, `placing` copies whole batches, `device_batches` casts and delivers
them, and `static_buffers` keeps addresses.
Resident data: `loading` loads the stored `frames` into a table, whose rows are `resident` fields; `pinned_memory` is
such a table in RAM. `batch_maker` makes a batch by one native call, and `resident_batches` those of a pass, which are
`gathered_ahead` where rows cross a bus, as `resident_settings` says.
`split_tier` keeps rows in several memories, chosen by `shares`; `split_transfer` lets the kernel read those in RAM or
has them copied by `copied_rows`, as `transfer_choice` finds faster. `group_loading` splits rows over processes of a
machine, by `node_memory` and `node_sharing`.
Kernels: `cuda_module` is memload's own module, and `kernels` calls it. `casting` and `gathering` use it for tensors, or
torch operations without it; `cast_stim` casts pixels.
Offloaded modules: `offload` moves a frozen module to a device and back, its `weights` whole or `layerwise`.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine.
"""
