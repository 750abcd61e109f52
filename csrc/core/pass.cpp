#include "core/pass.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/fault_guard.h"
#include "core/pieces.h"

namespace memload {
namespace {

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

Store choose_store(const PipelineOptions& options, std::size_t ring_bytes) {
  if (options.store) return *options.store;
  return 2 * ring_bytes > 3 * last_level_cache() ? Store::streaming : Store::cached;
}

}  // namespace

Pass::Pass(const std::vector<FieldSpec>& fields, const PipelineOptions& options, Pass* reuse)
    : options_(options), plan_(options.batch_rows, options.drop_last) {
  if (options.batch_rows == 0 || options.slot_rows == 0 || options.depth < 1 || options.threads < 1) {
    throw std::invalid_argument("batch_rows, slot_rows, depth and threads must be at least 1");
  }
  install_fault_handler();
  gather_ = std::make_shared<const Gather>(fields, options.isa, Store::cached);
  const Store store = choose_store(options, Pipeline::ring_bytes(*gather_, options.slot_rows, options.depth));
  if (store != Store::cached) gather_ = std::make_shared<const Gather>(fields, options.isa, store);
  slot_bytes_ = gather_->slot_bytes(options.slot_rows);
  stats_.streaming = store == Store::streaming;
  const auto slots = static_cast<std::size_t>(options.depth) + 1;
  const bool kept = reuse != nullptr && !reuse->in_child() && reuse->pool_ && !options.lent;
  if (kept && reuse->pool_->slots() != slots) reuse->pool_->close();
  pool_ = kept && reuse->pool_->slots() == slots ? std::move(reuse->pool_) : SlotPool::create(slots, options.slots);
  residency_ =
      std::make_shared<Residency>(gather_, ResidencyOptions{options.threads, options.direct, options.read_blocks});
  filler_ = std::make_shared<Filler>(gather_, residency_, /*ask=*/!options.read_blocks);
  read_ahead_.emplace(*gather_, options.slot_rows);
  crew_threads_ = residency_->threads();
  crew_ = std::make_shared<Crew>(crew_threads_);
  workers_ = Workers::shared(crew_threads_);
}

void Pass::plan(Rows rows, bool whole) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw std::logic_error("the pipeline is closed");
  if (whole) {
    plan_.push(std::move(rows));
  } else {
    plan_.extend(std::move(rows));
  }
  pump();
}

void Pass::finish() {
  const std::lock_guard lock(mutex_);
  plan_.finish();
  pump();
}

void Pass::pump() {
  if (options_.route) departed_.reclaim(*options_.route->device);
  while (!closed_ && plan_.ready() && in_flight_.size() < static_cast<std::size_t>(options_.depth)) {
    SlotPool::Lease slot = options_.lent ? nullptr : pool_->try_acquire(slot_bytes_);
    if (!slot && !options_.lent) break;
    start(std::move(slot), plan_.take(), /*fresh=*/false);
  }
  note_ring();
}

void Pass::check(const std::vector<std::int64_t>& rows) const {
  const auto bad =
      std::find_if(rows.begin(), rows.end(), [n = gather_->rows()](std::int64_t row) { return row < 0 || row >= n; });
  if (bad == rows.end()) return;
  throw std::out_of_range("row " + std::to_string(*bad) + " is not one of the " + std::to_string(gather_->rows()) +
                          " rows of the data set");
}

// slot has slot_bytes_. A batch that is larger than was known beforehand gets a larger one, which stays so.
void Pass::start(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh) {
  std::shared_ptr<Filling> filling;
  try {
    check(rows);
    if (residency_->look(rows)) ask_for_all(rows);  // before the batch is cut: cold ones are cut otherwise
    BatchLayout layout = gather_->layout(rows);
    if (layout.bytes > slot_bytes_ && !options_.lent) {
      slot.reset();
      slot = fresh ? pool_->fresh(layout.bytes) : pool_->try_acquire(layout.bytes);
    }
    filling = cut(std::move(slot), std::move(rows), std::move(layout));
  } catch (...) {
    fail_batch(std::move(slot), std::current_exception());
    return;
  }
  filling->fresh = fresh;
  // Where all other batches are ready, the loop is the slower side: one thread is enough, and leaves it the CPUs.
  const bool quiet = !residency_->cold() && !residency_->reads_planned() && !options_.lent;
  const bool calm = unready_ == 0 && !in_flight_.empty() && quiet;
  calm_ = calm_ || calm;
  in_flight_.push(filling);
  ++unready_;
  if (residency_->cold()) ask_for(read_ahead_->due(plan_));
  if (!options_.lent) workers_->submit(std::move(filling), /*urgent=*/false, calm ? 1 : SIZE_MAX);
}

std::shared_ptr<Filling> Pass::cut(SlotPool::Lease slot, std::vector<std::int64_t> rows, BatchLayout layout) {
  const Pieces pieces(*gather_, layout, residency_->threads(), residency_->reads_planned());
  auto done = [pass = shared_from_this()](Filling& filling, PieceReport report) {
    pass->piece_done(filling, std::move(report));
  };
  auto filling = std::make_shared<Filling>(crew_, gather_, filler_, std::move(done), std::move(slot), std::move(rows),
                                           std::move(layout), pieces);
  filling->landed = !options_.lent && !options_.route;
  if (options_.route) filling->ship(*options_.route);
  return filling;
}

// The batch is the last one.
void Pass::fail_batch(SlotPool::Lease slot, std::exception_ptr error) {
  in_flight_.push(std::make_shared<Filling>(crew_, std::move(slot), std::move(error)));
  plan_.finish();
}

// The ring is full while nothing is being gathered although the plan has more.
void Pass::note_ring() {
  const bool full = unready_ == 0 && plan_.ready() && !closed_;
  if (full == ring_full_since_.has_value()) return;
  if (full) {
    ring_full_since_ = Clock::now();
  } else {
    stats_.ring_full_seconds += seconds(Clock::now() - *ring_full_since_);
    ring_full_since_.reset();
  }
}

// Rows have turned out to be cold: those under way are asked for, those of a batch that has been taken from the plan
// and not begun, and those that the plan has next.
void Pass::ask_for_all(std::vector<std::int64_t> next_rows) {
  follow_residency();
  std::vector<std::int64_t> rows = in_flight_.rows_under_way();
  rows.insert(rows.end(), next_rows.begin(), next_rows.end());
  ask_for(std::move(rows));
  read_ahead_->restart(plan_);
  ask_for(read_ahead_->due(plan_));
}

void Pass::ask_for(std::vector<std::int64_t> rows) {
  if (rows.empty() || !workers_ || (residency_->direct() && !gather_->files().small_rows)) return;
  stats_.advised_rows += rows.size();
  auto sampled = [pass = shared_from_this()](bool resident) { pass->sampled(resident); };
  workers_->submit(
      std::make_shared<Advice>(crew_, std::move(rows), gather_, residency_, options_.read_blocks, std::move(sampled)),
      /*urgent=*/true);
}

// More threads may work for the pass while they wait for reads.
void Pass::follow_residency() {
  const int threads = residency_->threads();
  if (workers_ && threads != std::exchange(crew_threads_, threads)) workers_->set_limit(*crew_, threads);
}

void Pass::sampled(bool resident) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  residency_->sampled(resident);
  follow_residency();
}

void Pass::piece_done(Filling& filling, PieceReport report) {
  const std::lock_guard lock(mutex_);
  const Filled& found = report.found;
  stats_.gather_seconds += seconds(report.spent);
  stats_.decode_seconds += seconds(found.decoding);
  stats_.major_faults += static_cast<std::uint64_t>(report.major_faults);
  stats_.direct_bytes += found.direct_bytes;
  stats_.cached_bytes += found.cached_bytes;
  if (report.error) filling.fail(std::move(report.error));
  if (--filling.remaining == 0) {
    --unready_;
    note_ring();
    if (in_flight_.empty() || in_flight_.front().get() == &filling) ready_.notify_all();
  }
  if (closed_) return;
  const bool ask = residency_->filled(found, report.major_faults);
  follow_residency();
  if (ask) ask_for_all();
}

void Pass::slot_came_back() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    pump();
  } catch (...) {  // out of memory here has nobody to go to; next() tries again and tells
  }
}

std::optional<MemoryNeed> Pass::need() {
  const std::lock_guard lock(mutex_);
  pump();
  const std::shared_ptr<Filling> wants = in_flight_.unlanded();
  if (!wants || closed_) return std::nullopt;
  return MemoryNeed{wants->first_part(), wants->layout.bytes - wants->first_part()};
}

void Pass::land(const Landing& memory, std::shared_ptr<void> owner) {
  std::shared_ptr<Filling> filling;
  {
    const std::lock_guard lock(mutex_);
    filling = in_flight_.unlanded();
    if (!filling) throw std::logic_error("no batch needs memory");
    filling->landed = true;
    if (options_.lent) {
      filling->slot = SlotPool::Lease(std::move(owner), memory.passing);
      if (!closed_) workers_->submit(filling);
      return;
    }
  }
  try {
    filling->shipment->land(memory);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    filling->fail(std::current_exception());
  }
}

bool Pass::ready() {
  const std::lock_guard lock(mutex_);
  pump();
  return !closed_ && !in_flight_.unlanded() && complete();
}

// What next() has to tell; waiting: nothing yet.
Step Pass::step() const {
  if (closed_ || (in_flight_.empty() && plan_.ended())) return Step::end;
  if (in_flight_.unlanded()) return Step::unlanded;
  if (in_flight_.empty()) return plan_.ready() ? Step::waiting : Step::unplanned;
  return complete() ? Step::batch : Step::waiting;
}

Step Pass::next(Batch& batch, std::chrono::milliseconds patience, bool help) {
  const Clock::time_point start_time = Clock::now();
  Dropped dropped;  // a lease that ends takes the mutex: not before it is let go
  std::unique_lock lock(mutex_);
  Step step = Step::waiting;
  do {
    pump();
    step = this->step();
  } while (step == Step::waiting && advance(lock, start_time + patience, help));
  stats_.consumer_wait_seconds += seconds(Clock::now() - start_time);
  if (step == Step::end && !closed_ && !std::exchange(ended_, true)) {
    lock.unlock();
    gather_->check_files();
  }
  if (step != Step::batch) return step;
  hand_out(batch, dropped);
  lock.unlock();  // the lease may end right here if memory runs out, and its end takes the mutex
  if (options_.lent) {
    batch.slot.reset();  // here, and not when the last worker lets go of what it has gathered
  } else if (batch.slot) {
    batch.slot = waking(std::move(batch.slot));
  }
  return step;
}

// Does what brings the next batch nearer, or waits for it; false: it is not there by the deadline.
bool Pass::advance(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool help) {
  if (!in_flight_.empty()) return help_or_wait(lock, deadline, help);
  if (departed_.empty()) {  // every slot is lent: this batch gets memory of its own
    SlotPool::Lease slot = pool_->fresh(slot_bytes_);
    start(std::move(slot), plan_.take(), /*fresh=*/true);
  } else {
    wait_for_slot(lock);
  }
  return true;
}

bool Pass::help_or_wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool help) {
  const std::shared_ptr<Workers> workers = workers_;
  const bool was_calm = std::exchange(calm_, false);
  lock.unlock();
  if (was_calm) workers->wake(*crew_);
  // Not where reads wait for a disk: the timeout, and Ctrl-C, would wait for it, too.
  const bool helped = help && !residency_->cold() && !residency_->past_cache() && workers->help(*crew_);
  lock.lock();
  if (!helped) return ready_.wait_until(lock, deadline, [this] { return complete(); });
  ++stats_.helped_pieces;
  return complete() || Clock::now() < deadline;
}

// Every slot is still being copied, and nothing else is left to do.
void Pass::wait_for_slot(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point start_time = Clock::now();
  const Device::Event copied = departed_.next();
  lock.unlock();
  options_.route->device->synchronise(copied);
  lock.lock();
  stats_.copy_wait_seconds += seconds(Clock::now() - start_time);
}

void Pass::hand_out(Batch& batch, Dropped& dropped) {
  const std::shared_ptr<Filling> done = in_flight_.front();
  dropped.push_back(done);
  in_flight_.pop();
  if (done->error) stop_at(*done, dropped);
  batch.slot.swap(done->slot);  // what the caller's batch held before ends with the dropped
  if (done->shipment) depart(batch, *done);
  batch.rows = done->rows.size();
  batch.outputs = gather_->outputs(done->layout);
  ++stats_.batches;
  stats_.rows += batch.rows;
  stats_.bytes_in += done->layout.bytes_in();
  stats_.bytes_out += done->layout.bytes_out();
  if (done->fresh) ++stats_.fresh_batches;
}

// Nothing follows it.
void Pass::stop_at(Filling& failed, Dropped& dropped) {
  plan_ = PlanQueue(options_.batch_rows, options_.drop_last);
  plan_.finish();
  if (failed.shipment) failed.shipment->cancel();
  in_flight_.cancel_shipments();
  in_flight_.leave_to(dropped);
  ended_ = true;
  std::rethrow_exception(std::exchange(failed.error, nullptr));  // the consumer is its only holder, and its end
}

// The batch leaves its slot behind, until its copies are done.
void Pass::depart(Batch& batch, const Filling& filling) {
  const Device::Event copied = filling.shipment->event();
  departed_.add(std::exchange(batch.slot, nullptr), copied);
  batch.kept_begin = filling.shipment->kept_begin();
  stats_.copied_bytes += filling.layout.bytes;
  stats_.copies += filling.shipment->copies();
  options_.route->device->wait(options_.route->work, copied);
}

// The lease that is handed out starts the next batch when it ends. The slot's own lease lies inside it.
SlotPool::Lease Pass::waking(SlotPool::Lease slot) {
  std::byte* const data = slot.get();
  return {data, [slot = std::move(slot), pass = weak_from_this(), born = born_](std::byte*) mutable {
            slot.reset();
            if (born != fork_generation()) return;
            if (const std::shared_ptr<Pass> alive = pass.lock()) alive->slot_came_back();
          }};
}

bool Pass::close(bool keep_slots, std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    in_flight_.cancel_shipments();
    note_ring();
    ready_.notify_all();
  }
  if (workers_ && !workers_->drain(*crew_, patience)) return false;
  give_back(keep_slots);
  return true;
}

void Pass::forsake(bool keep_slots) {
  if (workers_) workers_->forsake(*crew_);
  workers_.reset();
  give_back(keep_slots);
}

void Pass::give_back(bool keep_slots) {
  Dropped dropped;  // their leases end without the mutex
  Departures departed;
  {
    const std::lock_guard lock(mutex_);
    in_flight_.leave_to(dropped);
    std::swap(departed, departed_);
  }
  if (options_.route && pool_) wait_for_copies();
  dropped.clear();
  departed = {};
  filler_->close();
  if (keep_slots) return;
  workers_.reset();
  if (pool_) pool_->close();
}

// Slots of batches that were given up are being copied from as well.
void Pass::wait_for_copies() noexcept {
  try {
    options_.route->device->synchronise(options_.route->device->record(options_.route->copies));
  } catch (const std::exception&) {  // the device is lost, or the process ends: nothing is copied any more
  }
}

PipelineStats Pass::stats() const {
  const std::lock_guard lock(mutex_);
  PipelineStats copy = stats_;
  if (ring_full_since_) copy.ring_full_seconds += seconds(Clock::now() - *ring_full_since_);
  return copy;
}

}  // namespace memload
