// The implementation of Pipeline: the ring of batches between the threads that gather and the loop that takes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/fork.h"
#include "core/gather/gather.h"
#include "core/pass/async_copy.h"
#include "core/pass/batch_reader.h"
#include "core/pass/batch_task.h"
#include "core/pass/pipeline.h"
#include "core/pass/plan_queue.h"
#include "core/pass/read_ahead.h"
#include "core/pass/residency.h"
#include "core/pass/workers.h"
#include "core/slots/slot_pool.h"

namespace memload {

//   PlanQueue --take--> BatchTask, in a slot --pieces--> Workers   ReadAhead: what comes next, while Residency is cold
//                          |  BatchesInFlight, in order
//                          v
//                       next() --> Batch --lease ends--> slot_came_back() --> the next BatchTask
//
// Pipeline is the public interface and says what each call means; this class holds what the threads share. mutex_
// guards the ring and all decisions on it. The locks of Workers, SlotPool and AsyncCopy are below it: they are taken
// with mutex_ held or without, and mutex_ is never taken under them. A lease ends without mutex_, since its end may
// take mutex_, in slot_came_back().
class Pass : public std::enable_shared_from_this<Pass> {
 public:
  Pass(const std::vector<FieldSpec>& columns, const PipelineOptions& options, Pass* reuse);

  void begin(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    key_ = key;
  }
  void plan(Rows rows, bool whole);
  void finish();
  Step next(Batch& batch, std::chrono::milliseconds patience, bool steal);
  Step next_if_ready(Batch& batch);
  bool ready();
  std::optional<DestinationSize> needed_destination();
  void set_destination(const DestinationBuffer& memory, std::shared_ptr<void> owner);
  void release();
  void check_files() const { gather_->check_files(); }
  PlanQueue cancel();
  bool close(bool keep_slots, std::chrono::milliseconds patience);
  void abandon(bool keep_slots);
  [[nodiscard]] PipelineStats stats() const;
  [[nodiscard]] std::shared_ptr<TileCache> tiles() const { return tiles_; }
  [[nodiscard]] std::int64_t rows() const { return gather_->rows(); }
  [[nodiscard]] std::size_t outputs(std::size_t field) const { return gather_->outputs(field); }
  [[nodiscard]] bool in_child() const { return born_ != fork_generation(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Dropped = std::deque<std::shared_ptr<BatchTask>>;

  // These begin batches, and stop doing so, with mutex_ held.
  void pump();
  [[nodiscard]] bool may_wait() const;
  // Whether each batch has memory without a call of set_destination().
  [[nodiscard]] bool finds_memory() const { return !options_.borrowed && (!options_.route || device_ring_); }
  [[nodiscard]] bool has_buffer() const { return !device_ring_ || device_ring_->has_free(); }
  // Whether no read waits for a disk, and no destination has to be given.
  [[nodiscard]] bool quiet() const { return !residency_->cold() && !residency_->reads_planned() && !options_.borrowed; }
  void submit_begun() noexcept;
  void check(const std::vector<std::int64_t>& rows) const;
  void start(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh) noexcept;
  void begin(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh);
  void stop_by_itself() noexcept;
  [[nodiscard]] std::shared_ptr<BatchTask> cut(SlotPool::Lease slot, BatchLayout layout);
  void fail_batch(SlotPool::Lease slot, std::vector<std::int64_t> rows, std::exception_ptr error);
  void note_ring();
  void stop();

  // These serve cold data, with mutex_ held.
  void ask_for_all(std::vector<std::int64_t> next_rows = {});
  void ask_for(std::vector<std::int64_t> rows);
  void follow_residency();

  // These hand batches out, with mutex_ held.
  [[nodiscard]] Step step() const;
  Step look(Dropped& dropped);
  [[nodiscard]] bool complete() const { return closed_ || broken_ || in_flight_.front_complete(); }
  void hand_out(Batch& batch, Dropped& dropped, std::unique_lock<std::mutex>& lock);  // without it in the end
  void take_front(Batch& batch, Dropped& dropped);
  [[noreturn]] void stop_by(std::exception_ptr error, Dropped& dropped);
  void keep_until_copied(Batch& batch, const BatchTask& task);

  // These are called with mutex_ held, and let go of it for a while.
  bool advance(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool steal);
  bool steal_or_wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool steal);
  void wait_for_slot(std::unique_lock<std::mutex>& lock);

  // These are called without mutex_: on the threads that gather, wherever a lease ends that was handed out, and at the
  // end.
  void piece_done(BatchTask& task, PieceReport report);
  void advised(std::optional<bool> resident, std::uint64_t read);
  void slot_came_back() noexcept;
  SlotPool::Lease waking(SlotPool::Lease slot);
  void give_back(bool keep_slots);
  void wait_for_copies() noexcept;

  // These need no guard. The objects that they point to have locks of their own, but for residency_: see there.
  const PipelineOptions options_;
  const std::uint64_t born_ = fork_generation();
  std::shared_ptr<TileCache> tiles_;  // null: decoded tiles are not kept
  std::shared_ptr<const Gather> gather_;
  std::size_t slot_bytes_ = 0;      // of a batch of slot_rows
  std::shared_ptr<SlotPool> pool_;  // null once another pass took it over
  std::shared_ptr<Residency> residency_;
  std::shared_ptr<BatchReader> reader_;
  std::shared_ptr<TaskGroup> group_;
  std::shared_ptr<Workers> workers_;  // null once it was given back

  mutable std::mutex mutex_;
  std::condition_variable ready_;  // the front batch is complete, or all has stopped
  PlanQueue plan_;                 // guarded by mutex_, as all below
  std::uint64_t key_ = 0;          // what is random follows from it, and from each row
  BatchesInFlight in_flight_;
  CopiesInFlight copies_in_flight_;
  std::optional<DeviceRing> device_ring_;
  std::optional<ReadAhead> read_ahead_;
  std::size_t unready_ = 0;                   // of those in flight, still being gathered
  int group_threads_ = 0;                     // what the group's limit was last set to
  bool calm_ = false;                         // threads may sleep though there is work
  std::vector<std::shared_ptr<Task>> begun_;  // and not yet given to the workers
  std::exception_ptr broken_;  // what no batch can tell: rows were taken from the plan, and nobody gathers them
  bool closed_ = false;
  std::optional<Clock::time_point> ring_full_since_;
  PipelineStats stats_;
};

}  // namespace memload
