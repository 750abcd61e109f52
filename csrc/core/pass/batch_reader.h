// Reads parts of batches into slots, on the threads of a pass: holds the memory that they read into and decode in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/gather/gather.h"
#include "core/io/ring_pool.h"
#include "core/pass/residency.h"
#include "core/slots/slot_pool.h"

namespace memload {

// A pass has one. Any thread may call anything.
class BatchReader {
 public:
  // ask: the kernel is asked for cold rows of a page or more as a whole. memory: where its memory comes from.
  BatchReader(std::shared_ptr<const Gather> gather, std::shared_ptr<const Residency> residency, bool ask,
              const MemorySource& memory);

  // Does a share of the work for a batch, as Gather::fill() does.
  Filled fill(const BatchLayout& layout, std::byte* slot, std::size_t begin, std::size_t end);
  // Throws ReadError if one of the batch's rows was cut off its file, as Gather::check_file() does. The call comes
  // after fill().
  void check(std::span<const std::int64_t> rows);

  // Gives its memory back; memory in use follows as soon as it is free.
  void close();

 private:
  // Null if no field needs one.
  SlotPool::Lease workspace();

  const std::shared_ptr<const Gather> gather_;
  const std::shared_ptr<const Residency> residency_;
  const bool ask_;
  const std::shared_ptr<SlotPool> scratch_;     // what direct reads are read into, one for each thread
  RingPool rings_;                              // with which many are under way, for storages past the page cache
  const std::shared_ptr<SlotPool> workspaces_;  // what readers work in, one for each thread and the consumer
  std::atomic<std::size_t> checked_{0};         // files looked at, in turn; relaxed: it orders nothing
};

}  // namespace memload
