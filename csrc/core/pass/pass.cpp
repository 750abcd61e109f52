#include "core/pass/pass.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/base/fault_guard.h"
#include "core/gather/pieces.h"
#include "core/pass/store_choice.h"

namespace memload {
namespace {

constexpr std::size_t kSmallBatch = std::size_t{1} << 20;  // bytes

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

Store choose_store(const PipelineOptions& options, std::size_t ring_bytes) {
  if (options.store) return *options.store;
  const SlotReader reader = options.route ? SlotReader::copy_engine : SlotReader::cpu;
  return default_store(reader, ring_bytes, last_level_cache());
}

}  // namespace

Pass::Pass(const std::vector<FieldSpec>& columns, const PipelineOptions& options, Pass* reuse)
    : options_(options), plan_(options.batch_rows, options.drop_last) {
  if (options.batch_rows == 0 || options.slot_rows == 0 || options.depth < 1 || options.threads < 1) {
    throw std::invalid_argument("batch_rows, slot_rows, depth and threads must be at least 1");
  }
  install_fault_handler();
  tiles_ = options.tiles;
  if (!tiles_ && options.tile_bytes != 0) tiles_ = std::make_shared<TileCache>(options.tile_bytes);
  std::vector<FieldSpec> fields = columns;  // which share what they keep of decoded tiles
  for (FieldSpec& field : fields) field.kept = tiles_;
  gather_ = std::make_shared<const Gather>(fields, options.isa, Store::cached);
  const Store store = choose_store(options, Pipeline::ring_bytes(*gather_, options.slot_rows, options.depth));
  if (store != Store::cached) gather_ = std::make_shared<const Gather>(fields, options.isa, store);
  slot_bytes_ = gather_->slot_bytes(options.slot_rows);
  stats_.streaming = store == Store::streaming;
  const auto slots = static_cast<std::size_t>(options.depth) + 1;
  const bool kept = reuse != nullptr && !reuse->in_child() && reuse->pool_ && !options.borrowed;
  if (kept && reuse->pool_->slots() != slots) reuse->pool_->close();
  pool_ = kept && reuse->pool_->slots() == slots ? std::move(reuse->pool_) : SlotPool::create(slots, options.slots);
  residency_ =
      std::make_shared<Residency>(gather_, ResidencyOptions{options.threads, options.direct, options.read_blocks});
  reader_ = std::make_shared<BatchReader>(gather_, residency_, /*ask=*/!options.read_blocks, source_of(options.spares));
  if (const auto& to = options.buffers) device_ring_.emplace(to->memory, to->count, to->bytes);
  read_ahead_.emplace(*gather_, options.slot_rows);
  group_threads_ = residency_->threads();
  group_ = std::make_shared<TaskGroup>(group_threads_);
  workers_ = Workers::shared(group_threads_, options.cpus);
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
  if (options_.route) copies_in_flight_.reclaim(*options_.route->device);
  const std::size_t most = may_wait() ? 0 : static_cast<std::size_t>(options_.depth);
  try {
    while (!closed_ && !broken_ && plan_.ready() && in_flight_.size() < most && has_buffer()) {
      SlotPool::Lease slot = options_.borrowed ? nullptr : pool_->try_acquire(slot_bytes_);
      if (!slot && !options_.borrowed) break;
      start(std::move(slot), plan_.take(), /*fresh=*/false);
    }
  } catch (...) {  // there is no memory for a further batch
    submit_begun();
    throw;
  }
  submit_begun();
  note_ring();
}

// To wake a thread takes as long as to gather a small batch. So small ones are begun several at a time, once half of
// those ahead were taken.
bool Pass::may_wait() const {
  const bool ahead =
      finds_memory() && unready_ == 0 && 2 * in_flight_.size() > static_cast<std::size_t>(options_.depth);
  return ahead && quiet() && slot_bytes_ <= kSmallBatch;
}

// What is not queued ends the pass, as in start().
void Pass::submit_begun() noexcept {
  if (begun_.empty()) return;
  // Where all others were ready, the loop is the slower side: one thread is enough, and leaves it the CPUs.
  const bool calm = begun_.size() == unready_ && in_flight_.size() > unready_ && quiet();
  calm_ = calm_ || calm;
  try {
    workers_->submit(std::exchange(begun_, {}), /*urgent=*/false, calm ? 1 : SIZE_MAX);
  } catch (...) {
    stop_by_itself();
  }
}

void Pass::check(const std::vector<std::int64_t>& rows) const {
  const auto bad =
      std::find_if(rows.begin(), rows.end(), [n = gather_->rows()](std::int64_t row) { return row < 0 || row >= n; });
  if (bad == rows.end()) return;
  throw std::out_of_range("row " + std::to_string(*bad) + " is not one of the " + std::to_string(gather_->rows()) +
                          " rows of the data set");
}

// What begin() cannot put into a batch ends the pass: without memory for that, the rows would be missing, or the batch
// would wait for threads that never heard of it.
void Pass::start(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh) noexcept {
  try {
    begin(std::move(slot), std::move(rows), fresh);
  } catch (...) {
    stop_by_itself();
  }
}

// Call in a handler: its exception is what next() is to throw.
void Pass::stop_by_itself() noexcept {
  if (!broken_) broken_ = std::current_exception();
  ready_.notify_all();
}

// slot has slot_bytes_. A batch that is larger than was known beforehand gets a larger one, which stays so.
void Pass::begin(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh) {
  std::shared_ptr<BatchTask> task;
  try {
    check(rows);
    gather_->check_fetched(rows);
    if (residency_->look(rows)) ask_for_all(rows);  // before the batch is cut: cold ones are cut otherwise
    BatchLayout layout = gather_->layout(rows, key_);
    if (layout.bytes > slot_bytes_ && !options_.borrowed) {
      slot.reset();
      slot = fresh ? pool_->fresh(layout.bytes) : pool_->try_acquire(layout.bytes);
    }
    task = cut(std::move(slot), std::move(layout));
  } catch (...) {
    fail_batch(std::move(slot), std::move(rows), std::current_exception());
    return;
  }
  task->rows = std::move(rows);
  task->fresh = fresh;
  in_flight_.push(task);
  ++unready_;
  if (residency_->cold()) ask_for(read_ahead_->due(plan_));
  if (!options_.borrowed) begun_.push_back(std::move(task));
}

std::shared_ptr<BatchTask> Pass::cut(SlotPool::Lease slot, BatchLayout layout) {
  const Pieces pieces(*gather_, layout, residency_->threads(), residency_->reads_planned());
  auto done = [pass = shared_from_this()](BatchTask& task, PieceReport report) {
    pass->piece_done(task, std::move(report));
  };
  auto task = std::make_shared<BatchTask>(group_, gather_, reader_, std::move(done), std::move(slot), std::move(layout),
                                          pieces);
  task->has_destination = finds_memory();
  if (options_.route) task->copy_to(*options_.route);
  if (device_ring_) task->copy->set_destination(device_ring_->take(task->layout.bytes));
  return task;
}

// The batch is the last one.
void Pass::fail_batch(SlotPool::Lease slot, std::vector<std::int64_t> rows, std::exception_ptr error) {
  in_flight_.push(std::make_shared<BatchTask>(group_, std::move(slot), std::move(rows), std::move(error)));
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

void Pass::piece_done(BatchTask& task, PieceReport report) {
  const std::lock_guard lock(mutex_);
  const Filled& found = report.found;
  stats_.gather_seconds += seconds(report.spent);
  stats_.decode_seconds += seconds(found.decoding);
  stats_.major_faults += static_cast<std::uint64_t>(report.major_faults);
  stats_.disk_bytes += report.disk_bytes;
  if (report.read_from_disk()) stats_.disk_seconds += seconds(report.spent);
  stats_.direct_bytes += found.direct_bytes;
  stats_.cached_bytes += found.cached_bytes;
  stats_.decoded_tiles += found.decoded_tiles;
  stats_.reused_bytes += found.reused_bytes;
  if (report.error) task.fail(std::move(report.error));
  if (--task.remaining == 0) {
    --unready_;
    note_ring();
    if (in_flight_.empty() || in_flight_.front().get() == &task) ready_.notify_all();
  }
  if (closed_) return;
  try {
    const bool ask = residency_->filled(found, report.missed_page_cache());
    follow_residency();
    if (ask) ask_for_all();
  } catch (...) {  // this thread has nobody to tell
    stop_by_itself();
  }
}

void Pass::slot_came_back() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    pump();
  } catch (...) {  // out of memory here has nobody to go to; next() tries again and tells
  }
}

bool Pass::ready() {
  const std::lock_guard lock(mutex_);
  pump();
  return !closed_ && (broken_ || (!in_flight_.without_destination() && complete()));
}

// What next() has to tell, after all that can be begun; waiting: nothing yet.
Step Pass::look(Dropped& dropped) {
  pump();
  if (broken_ && !closed_) stop_by(broken_, dropped);
  return step();
}

Step Pass::step() const {
  if (closed_ || (in_flight_.empty() && plan_.ended())) return Step::end;
  if (in_flight_.without_destination()) return Step::needs_destination;
  if (in_flight_.empty()) return plan_.ready() ? Step::waiting : Step::unplanned;
  return complete() ? Step::batch : Step::waiting;
}

Step Pass::next(Batch& batch, std::chrono::milliseconds patience, bool steal) {
  const Clock::time_point start_time = Clock::now();
  Dropped dropped;  // a lease that ends takes the mutex: not before it is let go
  std::unique_lock lock(mutex_);
  Step step = Step::waiting;
  do {
    step = look(dropped);
  } while (step == Step::waiting && advance(lock, start_time + patience, steal));
  stats_.consumer_wait_seconds += seconds(Clock::now() - start_time);
  if (step == Step::batch) hand_out(batch, dropped, lock);
  return step;
}

Step Pass::next_if_ready(Batch& batch) {
  Dropped dropped;  // as in next()
  std::unique_lock lock(mutex_);
  const Step step = look(dropped);
  if (step == Step::batch) hand_out(batch, dropped, lock);
  return step;
}

// Does what brings the next batch nearer, or waits for it; false: it is not there by the deadline.
bool Pass::advance(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool steal) {
  if (!in_flight_.empty()) return steal_or_wait(lock, deadline, steal);
  if (!has_buffer()) throw std::logic_error("every buffer of the device is in use: release() comes first");
  if (copies_in_flight_.empty()) {  // every slot is leased: this batch gets memory of its own
    SlotPool::Lease slot = pool_->fresh(slot_bytes_);
    start(std::move(slot), plan_.take(), /*fresh=*/true);
    submit_begun();
  } else {
    wait_for_slot(lock);
  }
  return true;
}

bool Pass::steal_or_wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, bool steal) {
  const std::shared_ptr<Workers> workers = workers_;
  const bool was_calm = std::exchange(calm_, false);
  lock.unlock();
  // Not where reads wait for a disk: the timeout, and Ctrl-C, would wait for it, too.
  const bool may_steal = steal && !residency_->cold() && !residency_->past_cache();
  if (was_calm && !may_steal) workers->wake(*group_);
  const bool stole = may_steal && workers->steal(*group_, was_calm);
  lock.lock();
  if (!stole) return ready_.wait_until(lock, deadline, [this] { return complete(); });
  ++stats_.stolen_pieces;
  return complete() || Clock::now() < deadline;
}

// Every slot is still being copied, and nothing else is left to do.
void Pass::wait_for_slot(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point start_time = Clock::now();
  const Device::Event copied = copies_in_flight_.next();
  lock.unlock();
  options_.route->device->synchronise(copied);
  lock.lock();
  stats_.copy_wait_seconds += seconds(Clock::now() - start_time);
}

void Pass::hand_out(Batch& batch, Dropped& dropped, std::unique_lock<std::mutex>& lock) {
  take_front(batch, dropped);
  lock.unlock();  // the lease may end right here if memory runs out, and its end takes the mutex
  if (options_.borrowed) {
    batch.slot.reset();  // here, and not when the last worker lets go of what it has gathered
  } else if (batch.slot) {
    batch.slot = waking(std::move(batch.slot));
  }
}

void Pass::take_front(Batch& batch, Dropped& dropped) {
  const std::shared_ptr<BatchTask> done = in_flight_.front();
  dropped.push_back(done);
  in_flight_.pop();
  if (done->error) {
    if (done->copy) done->copy->cancel();
    stop_by(std::exchange(done->error, nullptr), dropped);  // the consumer is its only holder, and its end
  }
  batch.slot.swap(done->slot);  // what the caller's batch held before ends with the dropped
  batch.row_numbers.swap(done->rows);
  if (done->copy) keep_until_copied(batch, *done);
  batch.outputs = gather_->outputs(done->layout);
  ++stats_.batches;
  stats_.rows += batch.row_numbers.size();
  stats_.bytes_in += done->layout.bytes_in();
  stats_.bytes_out += done->layout.bytes_out();
  if (done->fresh) ++stats_.fresh_batches;
}

// Nothing follows the error.
void Pass::stop_by(std::exception_ptr error, Dropped& dropped) {
  plan_ = PlanQueue(options_.batch_rows, options_.drop_last);
  plan_.finish();
  in_flight_.cancel_copies();
  in_flight_.leave_to(dropped);
  std::rethrow_exception(std::move(error));
}

// The batch leaves its slot behind, until its copies are done.
void Pass::keep_until_copied(Batch& batch, const BatchTask& task) {
  const Device::Event copied = task.copy->event();
  copies_in_flight_.add(std::exchange(batch.slot, nullptr), copied);
  batch.kept_begin = task.copy->kept_begin();
  batch.passing = task.copy->destination().passing;
  stats_.copied_bytes += task.layout.bytes;
  stats_.copies += task.copy->copies();
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

PlanQueue Pass::cancel() {
  const std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  PlanQueue left = plan_;
  in_flight_.put_back(left);
  stop();
  return left;
}

void Pass::stop() {
  closed_ = true;
  plan_ = PlanQueue(options_.batch_rows, options_.drop_last);
  in_flight_.cancel_copies();
  note_ring();
  ready_.notify_all();
}

bool Pass::close(bool keep_slots, std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(mutex_);
    stop();
  }
  if (workers_ && !workers_->drain(*group_, patience)) return false;
  give_back(keep_slots);
  return true;
}

void Pass::abandon(bool keep_slots) {
  if (workers_) workers_->abandon(*group_);
  workers_.reset();
  give_back(keep_slots);
}

void Pass::give_back(bool keep_slots) {
  std::vector<std::shared_ptr<Task>> begun;  // their leases, and those of `dropped`, end without the mutex
  Dropped dropped;
  CopiesInFlight copies;
  {
    const std::lock_guard lock(mutex_);
    std::swap(begun, begun_);
    in_flight_.leave_to(dropped);
    std::swap(copies, copies_in_flight_);
  }
  if (options_.route && pool_) wait_for_copies();
  dropped.clear();
  begun.clear();
  copies = {};
  reader_->close();
  if (keep_slots) return;
  if (const auto spares = options_.spares.lock(); spares && workers_) spares->keep(workers_);
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
