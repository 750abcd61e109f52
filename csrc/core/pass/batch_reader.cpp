#include "core/pass/batch_reader.h"

#include <utility>

#include "core/readers/planned_reads.h"

namespace memload {

BatchReader::BatchReader(std::shared_ptr<const Gather> gather, std::shared_ptr<const Residency> residency, bool ask,
                         const MemorySource& memory)
    : gather_(std::move(gather)),
      residency_(std::move(residency)),
      ask_(ask),
      scratch_(SlotPool::create(static_cast<std::size_t>(residency_->most_threads()), memory)),
      rings_(PlannedReads::kMostUnderWay),
      workspaces_(SlotPool::create(static_cast<std::size_t>(residency_->most_threads()) + 1, memory)) {}

Filled BatchReader::fill(const BatchLayout& layout, std::byte* slot, std::size_t begin, std::size_t end) {
  const bool past_cache = residency_->past_cache();
  const SlotPool::Lease scratch =
      past_cache || residency_->direct() ? scratch_->try_acquire(Gather::kScratch) : nullptr;
  const RingPool::Lease ring = past_cache && scratch ? rings_.acquire() : nullptr;
  ColdReads cold{residency_->cold() && ask_};
  if (scratch && residency_->direct()) cold.scratch = {scratch.get(), Gather::kScratch};
  if (scratch && past_cache) cold.memory = {scratch.get(), Gather::kScratch};
  cold.past = ring.get();
  const SlotPool::Lease memory = workspace();
  if (memory) cold.workspace = {memory.get(), gather_->workspace_bytes()};
  return gather_->fill(layout, slot, begin, end, cold);
}

void BatchReader::check(std::span<const std::int64_t> rows) {
  if (!residency_->past_cache() && !gather_->files().mapped) return;
  gather_->check_file(checked_.fetch_add(1, std::memory_order_relaxed), rows);
}

SlotPool::Lease BatchReader::workspace() {
  const std::size_t bytes = gather_->workspace_bytes();
  if (bytes == 0) return nullptr;
  SlotPool::Lease kept = workspaces_->try_acquire(bytes);
  return kept ? kept : workspaces_->fresh(bytes);
}

void BatchReader::close() {
  scratch_->close();
  workspaces_->close();
}

}  // namespace memload
