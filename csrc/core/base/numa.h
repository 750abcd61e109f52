// The NUMA node on which memory lies: what a device reads should lie on the device's own.
#pragma once

#include <cstddef>

namespace memload {

// Lets the pages of memory that nobody has touched yet lie on a NUMA node, and on others where it has none left. Does
// nothing where the thread already has a policy for its memory, such as that of numactl, or the kernel refuses: then
// pages lie where they would have. `memory` begins with a page.
void prefer_node(std::byte* memory, std::size_t bytes, int node) noexcept;

}  // namespace memload
