#include "bench/huge_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

namespace memload::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t n) { return (n + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace

HugeBuffer::HugeBuffer(std::size_t nbytes) {
  const std::size_t size = round_up(nbytes == 0 ? 1 : nbytes);
  const std::size_t mapped = size + kHugePage;
  void* map = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = {static_cast<std::byte*>(map), mapped};
  const std::size_t skip = kHugePage - reinterpret_cast<std::uintptr_t>(map) % kHugePage;
  data_ = map_.subspan(skip, nbytes);
  ::madvise(map_.data() + skip, size, MADV_HUGEPAGE);  // advice: where it is refused, ordinary pages serve
  std::memset(map_.data() + skip, 0, size);
}

HugeBuffer::~HugeBuffer() {
  if (!map_.empty()) ::munmap(map_.data(), map_.size());
}

}  // namespace memload::bench
