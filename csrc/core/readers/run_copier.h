// Copies runs of stored bytes into a batch: out of the mapping, or past the page cache.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cast/mover.h"
#include "core/base/memory.h"
#include "core/io/storage.h"
#include "core/readers/field_reader.h"
#include "core/readers/planned_reads.h"

namespace memload {

// It serves one fill() and runs under the fault guard: it owns nothing and throws nothing.
class RunCopier {
 public:
  static constexpr std::size_t kSmallRow = 4096;  // below, the hardware's prefetcher has no time to see a row's pattern
  static constexpr std::size_t kAhead = 8;        // rows to prefetch ahead of the one that is being copied

  // Elements of a row: n of them, from number `first` on. The size of the row decides how it is read while it is cold.
  struct Run {
    const std::byte* src;
    std::byte* row_out;  // where the result of the row begins
    std::size_t elements;
    std::size_t row_bytes;
    std::size_t first = 0;
    ResizeDraw draw{};
  };

  RunCopier(Mover mover, const ColdReads& cold, Filled& found) noexcept : mover_(mover), cold_(cold), found_(found) {}

  void copy(const Storage& storage, const Run& run) const noexcept {
    if (storage.past_cache() && copy_past_cache(storage, run)) return;
    const bool direct = run.row_bytes > FieldReader::kLargeRow && !cold_.scratch.empty() && storage.mapped();
    if (direct && !storage.past_cache() && !exceeds_scratch(run)) {
      copy_directly(storage, run);
    } else {
      copy_mapped(storage, run);
    }
  }

  // Copies out of the mapping, whatever the storage is.
  void copy_mapped(const Storage& storage, const Run& run) const noexcept {
    const std::size_t bytes = run.elements * mover_.in();
    if (!storage.enter(run.src, bytes)) found_.in_cache = false;
    if (cold_.ask && run.row_bytes > kSmallRow && !storage.resident(run.src)) storage.advise(run.src, bytes);
    move(run.src, run);
  }

  // Prefetches a small row before its turn comes.
  static void prefetch(const std::byte* at, std::size_t n) noexcept {
    constexpr std::size_t kCacheLine = 64;
    if (n > kSmallRow) return;
    for (std::size_t i = 0; i < n; i += kCacheLine) __builtin_prefetch(at + i, 0, 0);
  }

 private:
  // Copies one run, for readers that do not plan runs together. Returns false if the mapping is to be read.
  bool copy_past_cache(const Storage& storage, const Run& run) const noexcept {
    const std::size_t bytes = run.elements * mover_.in();
    return with_run(storage, run.src, bytes, /*whole=*/bytes == run.row_bytes, cold_.memory, found_,
                    [&](const std::byte* data) { move(data, run); });
  }

  // Whether the run is too large for the scratch, and may not be cut.
  [[nodiscard]] bool exceeds_scratch(const Run& run) const noexcept {
    return mover_.whole_rows() && run.elements * mover_.in() + kPage > cold_.scratch.size();
  }

  // Reads as many elements at once as the scratch can hold.
  void copy_directly(const Storage& storage, Run run) const noexcept {
    const std::size_t most = (cold_.scratch.size() - kPage) / mover_.in();
    for (std::size_t left = run.elements; left != 0; left -= run.elements) {
      run.elements = std::min(left, most);
      run.row_bytes = run.elements * mover_.in();
      if (const std::byte* const read = read_directly(storage, run.src, run.row_bytes)) {
        move(read, run);
      } else {
        copy_mapped(storage, run);
      }
      run.src += run.row_bytes;
      run.first += run.elements;
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

  void move(const std::byte* data, const Run& run) const noexcept {
    mover_(data, run.row_out, run.elements, run.first, run.draw);
  }

  Mover mover_;
  const ColdReads& cold_;
  Filled& found_;
};

}  // namespace memload
