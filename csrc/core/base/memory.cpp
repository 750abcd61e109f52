#include "core/base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/fork.h"

namespace memload {
namespace {

constexpr std::size_t kLargestBatch = std::size_t{1} << 56;  // more than any address space; sums of such do not wrap

}  // namespace

std::size_t batch_bytes(std::size_t rows, std::size_t row_bytes) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > kLargestBatch) {
    throw std::length_error("a batch of " + std::to_string(rows) + " rows is larger than any memory");
  }
  return bytes;
}

std::size_t last_level_cache() {
  // sysconf adds up all caches of all dies on some machines; what CPU 0 reads through is in sysfs, the largest level
  // last.
  std::size_t largest = 0;
  for (int index = 0;; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    std::size_t size = 0;
    char unit = 0;
    if (!(file >> size >> unit)) break;
    largest = std::max(largest, size << (unit == 'M' ? 20 : 10));
  }
  return largest != 0 ? largest : std::size_t{32} << 20;
}

std::size_t available_memory() noexcept {
  try {
    std::ifstream file("/proc/meminfo");
    std::string name, rest;
    for (std::size_t kilobytes = 0; file >> name >> kilobytes; std::getline(file, rest)) {
      if (name == "MemAvailable:") return kilobytes << 10;
    }
  } catch (const std::exception&) {  // no memory for the names
  }
  return SIZE_MAX;
}

HugeMemory::HugeMemory(std::size_t bytes) : size_(mapped_bytes(bytes)) {
  // mmap aligns to 4096 only: map one huge page more and cut both ends off.
  const bool huge = size_ >= kHugePage;
  const std::size_t span = huge ? size_ + kHugePage : size_;
  void* mapped = ::mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw OutOfMemory("memory for rows", span);
  auto* begin = static_cast<std::byte*>(mapped);
  if (huge) {
    const std::size_t head = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
    if (head != 0) ::munmap(begin, head);
    begin += head;
    if (span - head != size_) ::munmap(begin + size_, span - head - size_);
    ::madvise(begin, size_, MADV_HUGEPAGE);  // refused where huge pages are off: then small pages it is
  }
  data_ = begin;
}

HugeMemory::HugeMemory(HugeMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HugeMemory& HugeMemory::operator=(HugeMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void HugeMemory::withhold_from_children() const noexcept {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_DONTFORK);
}

void HugeMemory::share_with_children() const noexcept {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_DOFORK);
}

HugeMemory::~HugeMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::shared_ptr<HugeMemory> withheld_memory(std::size_t bytes) {
  auto memory = std::make_unique<HugeMemory>(bytes);
  memory->withhold_from_children();
  return {memory.release(), [born = fork_generation()](const HugeMemory* one) {
            if (born == fork_generation()) delete one;
          }};
}

}  // namespace memload
