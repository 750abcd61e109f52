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

#include "core/filler.h"
#include "core/gather.h"
#include "core/pieces.h"
#include "core/slot_pool.h"
#include "core/transfer.h"
#include "core/workers.h"

namespace memload {

// What a thread says of a piece that it is done with.
struct PieceReport {
  std::chrono::steady_clock::duration spent{};
  Filled found;
  long major_faults = 0;
  std::exception_ptr error;  // null if all went well
};

// One batch. What it is made of is written before its pieces are queued, and read by the threads that run them; what
// becomes of it is guarded by the mutex of its pass.
class Filling : public Job {
 public:
  // Called for each piece, by the thread that ran it.
  using Done = std::function<void(Filling& filling, PieceReport report)>;

  // layout is that of rows; `done` keeps alive what it needs. slot may come later, but before any piece is queued.
  Filling(std::shared_ptr<Crew> crew, std::shared_ptr<const Gather> gather, std::shared_ptr<Filler> filler, Done done,
          SlotPool::Lease slot, std::vector<std::int64_t> rows, BatchLayout layout, Pieces pieces);
  // A batch that failed before there was anything to gather.
  Filling(std::shared_ptr<Crew> crew, SlotPool::Lease slot, std::exception_ptr error);

  void run(std::size_t piece) noexcept override;

  // Lets the pieces be copied to a device as they are done. Before any of them is queued.
  void ship(const Route& route);

  // Of what it needs of a device's memory, the bytes of the first part; without a route all are.
  [[nodiscard]] std::size_t first_part() const noexcept { return shipment ? shipment->kept_begin() : layout.bytes; }
  [[nodiscard]] bool complete() const { return remaining == 0 && (error || !shipment || shipment->shipped()); }
  // The first error stays.
  void fail(std::exception_ptr e) noexcept {
    if (!error) error = std::move(e);
  }

  SlotPool::Lease slot;
  const std::vector<std::int64_t> rows;
  const BatchLayout layout;
  std::shared_ptr<Shipment> shipment;  // null without a route

  std::exception_ptr error;   // guarded by the pass's mutex, as all below
  std::size_t remaining = 0;  // pieces not yet done
  bool fresh = false;         // in memory of its own, since every slot was lent
  bool landed = true;         // needs no memory of others, or has it

 private:
  [[nodiscard]] std::size_t edge(std::size_t piece) const noexcept { return cut_.edge(*gather_, layout, piece); }

  const std::shared_ptr<const Gather> gather_;
  const std::shared_ptr<Filler> filler_;
  const Pieces cut_;
  const Done done_;
};

// The batches of a pass that have begun and were not handed out, in the plan's order. Guarded by the pass's mutex.
class InFlight {
 public:
  using FillingPtr = std::shared_ptr<Filling>;

  [[nodiscard]] bool empty() const noexcept { return batches_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return batches_.size(); }
  [[nodiscard]] const FillingPtr& front() const { return batches_.front(); }
  void push(FillingPtr filling) { batches_.push_back(std::move(filling)); }
  void pop() { batches_.pop_front(); }
  // All of them go to `dropped`, since their leases must end without the mutex.
  void leave_to(std::deque<FillingPtr>& dropped) {
    dropped.insert(dropped.end(), batches_.begin(), batches_.end());
    batches_.clear();
  }

  // Whether the next batch can be handed out.
  [[nodiscard]] bool front_complete() const { return !batches_.empty() && batches_.front()->complete(); }
  // The first that needs memory of others; null: none does.
  [[nodiscard]] FillingPtr unlanded() const;
  // The rows of those that are being gathered.
  [[nodiscard]] std::vector<std::int64_t> rows_under_way() const;
  // Nothing more of them is copied to a device than is on its way there.
  void cancel_shipments() const;

 private:
  std::deque<FillingPtr> batches_;
};

}  // namespace memload
