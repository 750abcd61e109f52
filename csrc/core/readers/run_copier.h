// Copies runs of stored bytes into a batch: out of the mapping, or past the page cache.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cast/affine.h"
#include "core/base/memory.h"
#include "core/io/storage.h"
#include "core/readers/field_reader.h"
#include "core/readers/planned_reads.h"

namespace memload {

// It serves one fill() and runs under the fault guard: it owns nothing and throws nothing.
class RunCopier {
 public:
  static constexpr std::size_t kSmallRow = 4096;  // below, the hardware's prefetcher has no time to see a row's pattern

  // mover reads elements of in_size bytes and writes elements of out_size bytes.
  RunCopier(Mover mover, std::size_t in_size, std::size_t out_size, const ColdReads& cold, Filled& found) noexcept
      : mover_(mover), in_size_(in_size), out_size_(out_size), cold_(cold), found_(found) {}

  // Copies elements, from number `at` on, of a row that has row_bytes in all. The size of the row decides how it is
  // read while it is cold.
  void copy(const Storage& storage, const std::byte* src, std::byte* out, std::size_t elements, std::size_t row_bytes,
            std::size_t at = 0) const noexcept {
    if (storage.past_cache() && copy_past_cache(storage, src, out, elements, row_bytes, at)) return;
    if (row_bytes > FieldReader::kLargeRow && !cold_.scratch.empty() && storage.mapped() && !storage.past_cache()) {
      copy_directly(storage, src, out, elements, at);
    } else {
      copy_mapped(storage, src, out, elements, row_bytes, at);
    }
  }

  // Copies out of the mapping, whatever the storage is.
  void copy_mapped(const Storage& storage, const std::byte* src, std::byte* out, std::size_t elements,
                   std::size_t row_bytes, std::size_t at) const noexcept {
    const std::size_t bytes = elements * in_size_;
    if (!storage.enter(src, bytes)) found_.in_cache = false;
    if (cold_.ask && row_bytes > kSmallRow && !storage.resident(src)) storage.advise(src, bytes);
    mover_(src, out, elements, at);
  }

  // Prefetches a small row before its turn comes.
  static void prefetch(const std::byte* at, std::size_t n) noexcept {
    constexpr std::size_t kCacheLine = 64;
    if (n > kSmallRow) return;
    for (std::size_t i = 0; i < n; i += kCacheLine) __builtin_prefetch(at + i, 0, 0);
  }

 private:
  // Copies one run, for readers that do not plan runs together. Returns false if the mapping is to be read.
  bool copy_past_cache(const Storage& storage, const std::byte* src, std::byte* out, std::size_t elements,
                       std::size_t row_bytes, std::size_t at) const noexcept {
    const std::size_t bytes = elements * in_size_;
    return with_run(storage, src, bytes, /*whole=*/bytes == row_bytes, cold_.memory, found_,
                    [&](const std::byte* data) { mover_(data, out, elements, at); });
  }

  // Reads as many elements at once as the scratch can hold.
  void copy_directly(const Storage& storage, const std::byte* src, std::byte* out, std::size_t elements,
                     std::size_t at) const noexcept {
    const std::size_t most = (cold_.scratch.size() - kPage) / in_size_;
    while (elements != 0) {
      const std::size_t n = std::min(elements, most);
      if (const std::byte* const read = read_directly(storage, src, n * in_size_)) {
        mover_(read, out, n, at);
      } else {
        copy_mapped(storage, src, out, n, n * in_size_, at);
      }
      src += n * in_size_;
      out += n * out_size_;
      elements -= n;
      at += n;
    }
  }

  // Returns nullptr if the mapping is to be read.
  const std::byte* read_directly(const Storage& storage, const std::byte* src, std::size_t bytes) const noexcept {
    if (storage.knows_residency() && storage.resident(src, bytes)) {
      ++found_.resident_reads;
      return nullptr;
    }
    const std::byte* const read = storage.read_direct(src, bytes, cold_.scratch);
    if (read != nullptr) {
      found_.direct_bytes += bytes;
    } else {
      found_.refused = found_.refused || !storage.reads_directly();
      storage.advise(src, bytes);
    }
    return read;
  }

  Mover mover_;
  std::size_t in_size_;
  std::size_t out_size_;
  const ColdReads& cold_;
  Filled& found_;
};

}  // namespace memload
