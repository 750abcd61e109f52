// The pages of this system, which may be larger than kPage, the least of any.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace memload {

// Returns the bytes of a page, of which addresses and offsets of mappings are multiples: 4096 on x86-64, up to 65536 on
// 64-bit Arm. 2 MB are whole pages everywhere.
[[nodiscard]] inline std::size_t system_page() noexcept {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

}  // namespace memload
