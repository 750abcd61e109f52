// "mbind(2)" and "get_mempolicy(2)" of the Linux manual. The calls are made without libnuma, which few machines have.
#include "core/base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>

namespace memload {
namespace {

constexpr int kNodes = 1024;  // that Linux can have
constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;

bool has_policy() noexcept {
  int policy = MPOL_DEFAULT;
  return ::syscall(SYS_get_mempolicy, &policy, nullptr, 0UL, nullptr, 0UL) != 0 || policy != MPOL_DEFAULT;
}

}  // namespace

void prefer_node(std::byte* memory, std::size_t bytes, int node) noexcept {
  if (node < 0 || node >= kNodes || bytes == 0 || has_policy()) return;
  std::array<unsigned long, kNodes / kBits> nodes{};
  nodes[static_cast<std::size_t>(node / kBits)] = 1UL << (node % kBits);
  static_cast<void>(::syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes.data(), kNodes + 1UL, 0UL));
}

}  // namespace memload
