// What is behind a Pipeline: the ring of batches between the threads that gather and the loop that takes.
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

#include "core/filler.h"
#include "core/filling.h"
#include "core/fork.h"
#include "core/gather.h"
#include "core/pipeline.h"
#include "core/plan_queue.h"
#include "core/read_ahead.h"
#include "core/residency.h"
#include "core/slot_pool.h"
#include "core/transfer.h"
#include "core/workers.h"

namespace memload {

//   PlanQueue --take--> Filling, in a slot --pieces--> Workers     ReadAhead: what comes next, while Residency is cold
//                          |  InFlight, in order
//                          v
//                       next() --> Batch --lease ends--> slot_came_back() --> the next Filling
//
// The face of it, with what each call means, is Pipeline; here is what the threads share. One mutex guards the ring,
// and what is decided on it: mutex_. Locks below it, each taken with mutex_ held or without, never the other way: those
// of Workers, SlotPool and Shipment. So a lease ends without mutex_: its end may take it, in slot_came_back().
class Pass : public std::enable_shared_from_this<Pass> {
 public:
  Pass(const std::vector<FieldSpec>& fields, const PipelineOptions& options, Pass* reuse);

  void plan(Rows rows, bool whole);
  void finish();
  Step next(Batch& batch, std::chrono::milliseconds patience, bool help);
  bool ready();
  std::optional<MemoryNeed> need();
  void land(const Landing& memory, std::shared_ptr<void> owner);
  bool close(bool keep_slots, std::chrono::milliseconds patience);
  void forsake(bool keep_slots);
  [[nodiscard]] PipelineStats stats() const;
  [[nodiscard]] std::size_t outputs(std::size_t field) const { return gather_->outputs(field); }
  [[nodiscard]] bool in_child() const { return born_ != fork_generation(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Dropped = std::deque<std::shared_ptr<Filling>>;

  // With mutex_ held: beginning batches.
  void pump();
  void check(const std::vector<std::int64_t>& rows) const;
  void start(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh);
  [[nodiscard]] std::shared_ptr<Filling> cut(SlotPool::Lease slot, std::vector<std::int64_t> rows, BatchLayout layout);
  void fail_batch(SlotPool::Lease slot, std::exception_ptr error);
  void note_ring();

  // With mutex_ held: cold data.
  void ask_for_all(std::vector<std::int64_t> next_rows = {});
  void ask_for(std::vector<std::int64_t> rows);
  void follow_residency();

  // With mutex_ held: handing batches out.
  [[nodiscard]] Step step() const;
  [[nodiscard]] bool complete() const { return closed_ || in_flight_.front_complete(); }
  void hand_out(Batch& batch, Dropped& dropped);
  [[noreturn]] void stop_at(Filling& failed, Dropped& dropped);
  void depart(Batch& batch, const Filling& filling);

  // With mutex_ held, which they let go for a while.
  bool advance(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool help);
  bool help_or_wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool help);
  void wait_for_slot(std::unique_lock<std::mutex>& lock);

  // Without it: on the threads that gather, wherever a lease ends that was handed out, and at the end.
  void piece_done(Filling& filling, PieceReport report);
  void sampled(bool resident);
  void slot_came_back() noexcept;
  SlotPool::Lease waking(SlotPool::Lease slot);
  void give_back(bool keep_slots);
  void wait_for_copies() noexcept;

  // None of these is guarded. What they point to has locks of its own, but for residency_: see there.
  const PipelineOptions options_;
  const std::uint64_t born_ = fork_generation();
  std::shared_ptr<const Gather> gather_;
  std::size_t slot_bytes_ = 0;      // of a batch of slot_rows
  std::shared_ptr<SlotPool> pool_;  // null once another pass took it over
  std::shared_ptr<Residency> residency_;
  std::shared_ptr<Filler> filler_;
  std::shared_ptr<Crew> crew_;
  std::shared_ptr<Workers> workers_;  // null once it was given back

  mutable std::mutex mutex_;
  std::condition_variable ready_;  // the front batch is complete, or all has stopped
  PlanQueue plan_;                 // guarded by mutex_, as all below
  InFlight in_flight_;
  Departures departed_;
  std::optional<ReadAhead> read_ahead_;
  std::size_t unready_ = 0;  // of those in flight, still being gathered
  int crew_threads_ = 0;     // what the crew's limit was last set to
  bool calm_ = false;        // threads may sleep though there is work
  bool closed_ = false;
  bool ended_ = false;  // the loop was told of the end, or of an error
  std::optional<Clock::time_point> ring_full_since_;
  PipelineStats stats_;
};

}  // namespace memload
