// Batches that are being gathered, piece by piece.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/gather/gather.h"
#include "core/gather/pieces.h"
#include "core/pass/async_copy.h"
#include "core/pass/batch_reader.h"
#include "core/pass/plan_queue.h"
#include "core/pass/workers.h"
#include "core/slots/slot_pool.h"

namespace memload {

// What a thread has read from disks so far, as the kernel counts it; some network file systems are not counted.
struct DiskReads {
  long major_faults = 0;
  std::uint64_t bytes = 0;
};
[[nodiscard]] DiskReads disk_reads_of_thread();

// What a thread reports of a finished piece.
struct PieceReport {
  std::chrono::steady_clock::duration spent{};
  Filled found;
  long major_faults = 0;
  std::uint64_t disk_bytes = 0;  // that were read from the disk for it
  std::exception_ptr error;      // null if all went well

  [[nodiscard]] bool read_from_disk() const noexcept { return major_faults != 0 || disk_bytes != 0; }
  // Whether rows were not in the page cache. What the kernel reads ahead from a page that was there takes no major
  // fault.
  [[nodiscard]] bool missed_page_cache() const noexcept {
    return major_faults != 0 || (disk_bytes != 0 && found.direct_bytes == 0);
  }
};

// One batch. Its input is written before its pieces are queued, and read by the threads that run them; once they are
// done, its pass may take the rows. The mutex of its pass guards what becomes of it.
class BatchTask : public Task {
 public:
  // Each piece calls it, on the thread that ran the piece.
  using Done = std::function<void(BatchTask& task, PieceReport report)>;

  // `done` keeps alive what it needs. The slot, and the rows whose layout this is, may come later, but before any piece
  // is queued.
  BatchTask(std::shared_ptr<TaskGroup> group, std::shared_ptr<const Gather> gather, std::shared_ptr<BatchReader> reader,
            Done done, SlotPool::Lease slot, BatchLayout layout, Pieces pieces);
  // Makes a batch that failed before there was anything to gather.
  BatchTask(std::shared_ptr<TaskGroup> group, SlotPool::Lease slot, std::vector<std::int64_t> rows,
            std::exception_ptr error);

  void run(std::size_t number) noexcept override;

  // Has finished pieces copied to a device. The call comes before any piece is queued.
  void copy_to(const Route& route);

  // Bytes of the first part of its destination; all bytes without a route.
  [[nodiscard]] std::size_t first_part() const noexcept { return copy ? copy->kept_begin() : layout.bytes; }
  [[nodiscard]] bool complete() const { return remaining == 0 && (error || !copy || copy->issued()); }
  // Keeps the first error.
  void fail(std::exception_ptr e) noexcept {
    if (!error) error = std::move(e);
  }

  SlotPool::Lease slot;
  std::vector<std::int64_t> rows;
  const BatchLayout layout;
  std::shared_ptr<AsyncCopy> copy;  // null without a route

  std::exception_ptr error;     // guarded by the pass's mutex, as all below
  std::size_t remaining = 0;    // pieces that are not done
  bool fresh = false;           // it lies in memory of its own, since every slot was leased
  bool has_destination = true;  // it needs no memory of others, or has it

 private:
  [[nodiscard]] std::size_t edge(std::size_t piece) const noexcept { return cut_.edge(*gather_, layout, piece); }

  const std::shared_ptr<const Gather> gather_;
  const std::shared_ptr<BatchReader> reader_;
  const Pieces cut_;
  const Done done_;
};

// The batches of a pass that have begun and were not handed out, in the plan's order. The pass's mutex guards them.
class BatchesInFlight {
 public:
  using BatchTaskPtr = std::shared_ptr<BatchTask>;

  [[nodiscard]] bool empty() const noexcept { return batches_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return batches_.size(); }
  [[nodiscard]] const BatchTaskPtr& front() const { return batches_.front(); }
  void push(BatchTaskPtr task) { batches_.push_back(std::move(task)); }
  void pop() { batches_.pop_front(); }
  // Moves all of them to `dropped`: their leases must end without the mutex.
  void leave_to(std::deque<BatchTaskPtr>& dropped) {
    dropped.insert(dropped.end(), batches_.begin(), batches_.end());
    batches_.clear();
  }

  // Whether the next batch can be handed out.
  [[nodiscard]] bool front_complete() const { return !batches_.empty() && batches_.front()->complete(); }
  // The first batch that lacks a destination; null if none does.
  [[nodiscard]] BatchTaskPtr without_destination() const;
  // The rows of all batches that are being gathered.
  [[nodiscard]] std::vector<std::int64_t> rows_under_way() const;
  // Puts the rows of all batches back to the front of their plan.
  void put_back(PlanQueue& plan) const;
  // Ends their copies to a device, but for those that were issued.
  void cancel_copies() const;

 private:
  std::deque<BatchTaskPtr> batches_;
};

}  // namespace memload
