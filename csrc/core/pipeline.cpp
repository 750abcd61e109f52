#include "core/pipeline.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/fault_guard.h"
#include "core/fork.h"
#include "core/plan_queue.h"
#include "core/planned_reads.h"
#include "core/workers.h"

namespace memload {
namespace {

using Clock = std::chrono::steady_clock;

// Pieces of 256 KB to 1 MB measured best: 64 KB lose 5 to 8 %, 8 MB 9 %.
constexpr std::size_t kSmallestPiece = std::size_t{256} << 10;
constexpr std::size_t kLargestPiece = std::size_t{1} << 20;
constexpr std::size_t kPiecesOfThread = 4;  // of a batch, between these: so many even out what some take longer
// How far ahead rows are asked for when reads go to the disk: so many bytes or rows, whichever is less, fill its queue.
constexpr std::size_t kAdviseBytes = std::size_t{32} << 20;
constexpr std::size_t kAdviseRows = 256;
constexpr std::size_t kAdvisePiece = 16;  // rows
constexpr std::size_t kBlockPiece = 2;    // rows whose blocks are waited for
// Reads past the page cache that are under way at once, each with a thread that waits for it. A disk reaches its rate
// with 2 to 4 of 512 KB to 1 MB; the others are being copied meanwhile, or wait for a CPU that does other work as well.
// Of 4, 6, 8 and 12, 8 measured best: with 4 the disk idles at times, with 12 it fell to 0.6 of its rate in some runs.
constexpr int kDirectReads = 8;
// So many rows in a row found in the page cache end the asking, and the direct reading.
constexpr std::size_t kWarmSamples = 64;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

long major_faults_of_thread() {
  struct rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
}

std::size_t piece_bytes(std::size_t batch_bytes, std::size_t pieces) {
  return round_up(std::clamp(batch_bytes / pieces, kSmallestPiece, kLargestPiece), Gather::kAlign);
}

// The output of as many bytes of input as piece_bytes() would take: what matters to a disk is the size of the reads.
std::size_t direct_piece_bytes(std::size_t batch_bytes, std::size_t bytes_in, std::size_t pieces) {
  const double widened = static_cast<double>(batch_bytes) / static_cast<double>(std::max<std::size_t>(1, bytes_in));
  const auto piece = static_cast<std::size_t>(widened * static_cast<double>(piece_bytes(bytes_in, pieces)));
  return round_up(std::max<std::size_t>(1, piece), Gather::kAlign);
}

std::size_t bytes_in(const BatchLayout& layout) {
  std::size_t bytes = 0;
  for (const BatchLayout::Share& share : layout.shares) bytes += share.plan->bytes_in;
  return bytes;
}

Store choose_store(const PipelineOptions& options, std::size_t ring_bytes) {
  if (options.store) return *options.store;
  return 2 * ring_bytes > 3 * last_level_cache() ? Store::streaming : Store::cached;
}

}  // namespace

class Pipeline::State : public std::enable_shared_from_this<Pipeline::State> {
 public:
  State(const std::vector<FieldSpec>& fields, const PipelineOptions& options, State* reuse);

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
  class Filling;
  class Advice;

  // A slot whose batch is still being copied to the device.
  struct Departed {
    SlotPool::Lease slot;
    Device::Event copied;
  };

  void give_back(bool keep_slots);
  void wait_for_copies() noexcept;

  // All of these are called with mutex_ held.
  void pump();
  void check(const std::vector<std::int64_t>& rows) const;
  void start(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh);
  [[nodiscard]] std::size_t piece_of(const BatchLayout& layout) const;
  void fail_batch(SlotPool::Lease slot, std::exception_ptr error);
  void advise_ahead();
  void submit_advice(std::vector<std::int64_t> rows);
  [[nodiscard]] bool direct() const { return cold_ && direct_; }
  [[nodiscard]] bool past_cache() const { return gather_->files().past_cache; }
  // Whether many threads wait for reads.
  [[nodiscard]] bool reads_planned() const { return direct() || past_cache(); }
  [[nodiscard]] int direct_threads() const { return std::max(options_.threads, kDirectReads); }
  void turn_cold(std::vector<std::int64_t> next_rows = {});
  void turn_warm();
  void stop_direct_reads();
  void count_warm(bool cold, std::size_t resident);
  void look_at_residency(const std::vector<std::int64_t>& rows);
  void hand_out(Batch& batch, std::deque<std::shared_ptr<Filling>>& dropped);
  void note_ring();
  void depart(Batch& batch, const Filling& filling);
  void reclaim();
  void wait_for_slot(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool complete() const;
  [[nodiscard]] std::shared_ptr<Filling> unlanded() const;
  void cancel_shipments();

  // Called by workers without the mutex.
  SlotPool::Lease workspace();
  void piece_done(Filling& filling, Clock::duration spent, const Filled& found, long major_faults);
  void sampled(bool resident);
  SlotPool::Lease waking(SlotPool::Lease slot);
  // Called wherever a lease that was handed out ends, without the mutex.
  void slot_came_back() noexcept;

  const PipelineOptions options_;
  const std::uint64_t born_ = fork_generation();
  std::unique_ptr<const Gather> gather_;
  std::size_t slot_bytes_ = 0;            // of a batch of slot_rows
  std::shared_ptr<SlotPool> pool_;        // null once another pass took it over
  std::shared_ptr<SlotPool> scratch_;     // what direct reads are read into, one for each thread
  RingPool rings_;                        // and with which reads many are under way, for storages past the page cache
  std::shared_ptr<SlotPool> workspaces_;  // what tiles are decoded in, one for each thread and one for the consumer
  std::shared_ptr<Crew> crew_;
  std::shared_ptr<Workers> workers_;

  mutable std::mutex mutex_;
  std::condition_variable ready_;                   // the front batch is complete, or all has stopped
  PlanQueue plan_;                                  // guarded by mutex_, as all below
  std::deque<std::shared_ptr<Filling>> in_flight_;  // in the plan's order
  std::deque<Departed> departed_;                   // in the order of their copies
  std::size_t unready_ = 0;                         // of those, still being gathered
  bool calm_ = false;                               // threads may sleep though there is work
  std::size_t advised_ = 0;                         // position in the plan up to which rows were asked for
  bool looked_ = false;
  // These two are written with mutex_ and read without: an old value costs time only.
  std::atomic<bool> cold_{false};
  std::atomic<std::size_t> checked_{0};  // files looked at, in turn
  std::atomic<bool> direct_;             // large rows are read past the page cache while cold_
  std::size_t warm_samples_ = 0;
  bool closed_ = false;
  bool ended_ = false;  // the loop was told of the end, or of an error
  std::optional<Clock::time_point> ring_full_since_;
  PipelineStats stats_;
};

// A batch being gathered. What it holds is written before its pieces are queued, and read by many.
class Pipeline::State::Filling : public Job {
 public:
  // rows is what the layout was made of.
  Filling(State& state, SlotPool::Lease slot, std::vector<std::int64_t> rows, BatchLayout layout, std::size_t piece)
      : Job(state.crew_, std::max<std::size_t>(1, (layout.work + piece - 1) / piece)),
        slot(std::move(slot)),
        rows(std::move(rows)),
        layout(std::move(layout)),
        remaining(pieces()),
        state_(state.shared_from_this()),
        piece_(piece),
        whole_rows_(state.reads_planned()) {}

  void run(std::size_t index) noexcept override {
    const Clock::time_point start = Clock::now();
    const bool watch = state_->gather_->files().mapped;
    const long faults = watch ? major_faults_of_thread() : 0;
    Filled found;
    try {
      const bool past_cache = state_->past_cache();
      const SlotPool::Lease scratch =
          past_cache || state_->direct() ? state_->scratch_->try_acquire(Gather::kScratch) : nullptr;
      const RingPool::Lease ring = past_cache && scratch ? state_->rings_.acquire() : nullptr;
      ColdReads cold{state_->cold_ && !state_->options_.read_blocks};
      if (scratch && state_->direct()) cold.scratch = {scratch.get(), Gather::kScratch};
      if (scratch && past_cache) cold.memory = {scratch.get(), Gather::kScratch};
      cold.past = ring.get();
      const SlotPool::Lease workspace = state_->workspace();
      if (workspace) cold.workspace = {workspace.get(), state_->gather_->workspace_bytes()};
      found = state_->gather_->fill(layout, slot.get(), edge(index), edge(index + 1), cold);
      if (watch || past_cache) {
        state_->gather_->check_file(state_->checked_.fetch_add(1, std::memory_order_relaxed), rows);
      }
      if (shipment) shipment->piece_done(index);
    } catch (...) {
      const std::lock_guard lock(state_->mutex_);
      fail(std::current_exception());
    }
    state_->piece_done(*this, Clock::now() - start, found, watch ? major_faults_of_thread() - faults : 0);
  }

  // Lets the pieces be copied as they are done. Before any of them is queued.
  void ship(const Route& route) {
    const std::size_t kept_begin =
        route.kept_from < layout.shares.size() ? layout.shares[route.kept_from].offset : layout.bytes;
    std::vector<std::size_t> ready(pieces());
    for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = finished_bytes(layout, edge(i + 1));
    shipment = std::make_shared<Shipment>(route, slot.get(), kept_begin, std::move(ready));
  }

  // With the state's mutex held, as the next ones.
  [[nodiscard]] MemoryNeed need() const {
    if (!shipment) return {layout.bytes, 0};
    return {shipment->kept_begin(), layout.bytes - shipment->kept_begin()};
  }

  [[nodiscard]] bool complete() const { return remaining == 0 && (error || !shipment || shipment->shipped()); }

  // The first error stays.
  void fail(std::exception_ptr e) {
    if (!error) error = std::move(e);
  }

  SlotPool::Lease slot;
  std::vector<std::int64_t> rows;
  BatchLayout layout;
  std::exception_ptr error;  // guarded by the state's mutex, as the next two
  std::size_t remaining;     // pieces not yet done
  bool fresh = false;
  bool landed = true;
  std::shared_ptr<Shipment> shipment;  // null without a route

 private:
  // Where the piece begins, and the one before it ends.
  [[nodiscard]] std::size_t edge(std::size_t index) const {
    const std::size_t at = std::min(index * piece_, layout.work);
    return whole_rows_ ? state_->gather_->row_edge(layout, at) : at;
  }

  std::shared_ptr<State> state_;
  std::size_t piece_;
  bool whole_rows_;
};

// Rows to ask the kernel for.
class Pipeline::State::Advice : public Job {
 public:
  Advice(State& state, std::vector<std::int64_t> rows)
      : Job(state.crew_, (rows.size() + piece_rows(state) - 1) / piece_rows(state)),
        state_(state.shared_from_this()),
        rows_(std::move(rows)) {}

  void run(std::size_t index) noexcept override {
    const std::size_t rows = piece_rows(*state_);
    const std::size_t begin = index * rows;
    const auto part = std::span<const std::int64_t>(rows_).subspan(begin, std::min(rows, rows_.size() - begin));
    if (state_->gather_->files().knows_residency) state_->sampled(state_->gather_->resident(part.front()));
    if (state_->options_.read_blocks) {
      state_->gather_->read_blocks(part);
    } else {
      state_->gather_->advise(part, /*small_only=*/state_->direct());
    }
  }

 private:
  static std::size_t piece_rows(const State& state) { return state.options_.read_blocks ? kBlockPiece : kAdvisePiece; }

  std::shared_ptr<State> state_;
  std::vector<std::int64_t> rows_;
};

Pipeline::State::State(const std::vector<FieldSpec>& fields, const PipelineOptions& options, State* reuse)
    : options_(options), plan_(options.batch_rows, options.drop_last), direct_(false) {
  if (options.batch_rows == 0 || options.slot_rows == 0 || options.depth < 1 || options.threads < 1) {
    throw std::invalid_argument("batch_rows, slot_rows, depth and threads must be at least 1");
  }
  install_fault_handler();
  auto sized = std::make_unique<const Gather>(fields, options.isa, Store::cached);
  const Store store = choose_store(options, Pipeline::ring_bytes(*sized, options.slot_rows, options.depth));
  gather_ = store == Store::cached ? std::move(sized) : std::make_unique<const Gather>(fields, options.isa, store);
  slot_bytes_ = gather_->slot_bytes(options.slot_rows);
  stats_.streaming = store == Store::streaming;
  const auto slots = static_cast<std::size_t>(options.depth) + 1;
  const bool kept = reuse != nullptr && !reuse->in_child() && reuse->pool_ && !options.lent;
  if (kept && reuse->pool_->slots() != slots) reuse->pool_->close();
  pool_ = kept && reuse->pool_->slots() == slots ? std::move(reuse->pool_) : SlotPool::create(slots, options.slots);
  direct_ = options.direct && !options.read_blocks && gather_->files().large_rows;
  scratch_ = SlotPool::create(static_cast<std::size_t>(direct_threads()));
  workspaces_ = SlotPool::create(static_cast<std::size_t>(direct_threads()) + 1);
  const int threads = past_cache() ? direct_threads() : options.threads;
  crew_ = std::make_shared<Crew>(threads);
  workers_ = Workers::shared(threads);
}

void Pipeline::State::plan(Rows rows, bool whole) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw std::logic_error("the pipeline is closed");
  if (whole) {
    plan_.push(std::move(rows));
  } else {
    plan_.extend(std::move(rows));
  }
  pump();
}

void Pipeline::State::finish() {
  const std::lock_guard lock(mutex_);
  plan_.finish();
  pump();
}

void Pipeline::State::pump() {
  reclaim();
  while (!closed_ && plan_.ready() && in_flight_.size() < static_cast<std::size_t>(options_.depth)) {
    SlotPool::Lease slot = options_.lent ? nullptr : pool_->try_acquire(slot_bytes_);
    if (!slot && !options_.lent) break;
    start(std::move(slot), plan_.take(), /*fresh=*/false);
  }
  note_ring();
}

void Pipeline::State::check(const std::vector<std::int64_t>& rows) const {
  const auto bad =
      std::find_if(rows.begin(), rows.end(), [n = gather_->rows()](std::int64_t row) { return row < 0 || row >= n; });
  if (bad == rows.end()) return;
  throw std::out_of_range("row " + std::to_string(*bad) + " is not one of the " + std::to_string(gather_->rows()) +
                          " rows of the data set");
}

// slot has slot_bytes_. A batch that is larger than was known beforehand gets a larger one, which stays so.
void Pipeline::State::start(SlotPool::Lease slot, std::vector<std::int64_t> rows, bool fresh) {
  BatchLayout layout;
  try {
    check(rows);
    if (!looked_) look_at_residency(rows);
    layout = gather_->layout(rows);
    if (layout.bytes > slot_bytes_ && !options_.lent) {
      slot.reset();
      slot = fresh ? pool_->fresh(layout.bytes) : pool_->try_acquire(layout.bytes);
    }
  } catch (...) {
    fail_batch(std::move(slot), std::current_exception());
    return;
  }
  const std::size_t piece = piece_of(layout);
  auto filling = std::make_shared<Filling>(*this, std::move(slot), std::move(rows), std::move(layout), piece);
  filling->fresh = fresh;
  filling->landed = !options_.lent && !options_.route;
  if (options_.route) filling->ship(*options_.route);
  // Where all other batches are ready, the loop is the slower side: one thread is enough, and leaves it the CPUs.
  const bool calm = unready_ == 0 && !in_flight_.empty() && !cold_ && !reads_planned() && !options_.lent;
  calm_ = calm_ || calm;
  in_flight_.push_back(filling);
  ++unready_;
  if (cold_) advise_ahead();
  if (!options_.lent) workers_->submit(std::move(filling), /*urgent=*/false, calm ? 1 : SIZE_MAX);
}

std::size_t Pipeline::State::piece_of(const BatchLayout& layout) const {
  const auto threads = static_cast<std::size_t>(reads_planned() ? direct_threads() : options_.threads);
  if (!reads_planned()) return piece_bytes(layout.work, threads * kPiecesOfThread);
  // Each thread has the small rows of its piece read together: the more, the fuller is the disk's queue.
  const bool together = past_cache() && gather_->row_bytes() <= PlannedReads::kBytesUnderWay / 4;
  return direct_piece_bytes(layout.work, bytes_in(layout), threads * (together ? 1 : kPiecesOfThread));
}

// Slots whose copies are done can be filled again.
void Pipeline::State::reclaim() {
  while (!departed_.empty() && options_.route->device->done(departed_.front().copied)) departed_.pop_front();
}

// Every slot is still being copied, and nothing else is left to do.
void Pipeline::State::wait_for_slot(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point start_time = Clock::now();
  const Device::Event copied = departed_.front().copied;
  lock.unlock();
  options_.route->device->synchronise(copied);
  lock.lock();
  stats_.copy_wait_seconds += seconds(Clock::now() - start_time);
}

std::shared_ptr<Pipeline::State::Filling> Pipeline::State::unlanded() const {
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(), [](const auto& f) { return !f->landed; });
  return found == in_flight_.end() ? nullptr : *found;
}

bool Pipeline::State::complete() const { return closed_ || (!in_flight_.empty() && in_flight_.front()->complete()); }

void Pipeline::State::cancel_shipments() {
  for (const auto& filling : in_flight_) {
    if (filling->shipment) filling->shipment->cancel();
  }
}

std::optional<MemoryNeed> Pipeline::State::need() {
  const std::lock_guard lock(mutex_);
  pump();
  const std::shared_ptr<Filling> wants = unlanded();
  return wants && !closed_ ? std::optional(wants->need()) : std::nullopt;
}

void Pipeline::State::land(const Landing& memory, std::shared_ptr<void> owner) {
  std::shared_ptr<Filling> filling;
  {
    const std::lock_guard lock(mutex_);
    filling = unlanded();
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

bool Pipeline::State::ready() {
  const std::lock_guard lock(mutex_);
  pump();
  return !closed_ && !unlanded() && complete();
}

// The batch is the last one.
void Pipeline::State::fail_batch(SlotPool::Lease slot, std::exception_ptr error) {
  auto failed = std::make_shared<Filling>(*this, std::move(slot), std::vector<std::int64_t>{}, BatchLayout{}, 1);
  failed->fail(std::move(error));
  failed->remaining = 0;
  failed->landed = true;
  in_flight_.push_back(std::move(failed));
  plan_.finish();
}

// Before the batch of these rows is cut into pieces, since cold ones are cut otherwise.
void Pipeline::State::look_at_residency(const std::vector<std::int64_t>& rows) {
  looked_ = true;
  if (!gather_->files().mapped) return;
  const std::size_t step = std::max<std::size_t>(1, rows.size() / 8);
  for (std::size_t i = 0; i < rows.size() && !cold_; i += step) {
    if (!gather_->resident(rows[i])) turn_cold(rows);
  }
}

// next_rows: of a batch that has been taken from the plan and not begun.
void Pipeline::State::turn_cold(std::vector<std::int64_t> next_rows) {
  cold_ = true;
  warm_samples_ = 0;
  gather_->expect_random_reads(options_.read_blocks);
  if (direct_ && workers_) workers_->set_limit(*crew_, direct_threads());
  std::vector<std::int64_t> rows;
  for (const auto& filling : in_flight_) {
    if (filling->remaining != 0) rows.insert(rows.end(), filling->rows.begin(), filling->rows.end());
  }
  rows.insert(rows.end(), next_rows.begin(), next_rows.end());
  submit_advice(std::move(rows));
  advised_ = plan_.taken();
  advise_ahead();
}

void Pipeline::State::turn_warm() {
  cold_ = false;
  if (direct_ && workers_ && !past_cache()) workers_->set_limit(*crew_, options_.threads);
}

// The file system cannot, or a file was replaced: from here on this pass goes through the page cache.
void Pipeline::State::stop_direct_reads() {
  direct_ = false;
  if (workers_ && !past_cache()) workers_->set_limit(*crew_, options_.threads);
  turn_cold();
}

void Pipeline::State::advise_ahead() {
  const std::size_t row_bytes = std::max<std::size_t>(1, gather_->row_bytes());
  const std::size_t window = std::max(options_.slot_rows, std::min(kAdviseBytes / row_bytes, kAdviseRows));
  advised_ = std::max(advised_, plan_.taken());
  const std::size_t until = plan_.taken() + window;
  if (advised_ >= until) return;
  std::vector<std::int64_t> rows = plan_.peek(advised_, until - advised_);
  std::erase_if(rows, [n = gather_->rows()](std::int64_t row) { return row < 0 || row >= n; });
  advised_ += rows.size();
  submit_advice(std::move(rows));
}

void Pipeline::State::submit_advice(std::vector<std::int64_t> rows) {
  if (rows.empty() || !workers_ || (direct() && !gather_->files().small_rows)) return;
  stats_.advised_rows += rows.size();
  workers_->submit(std::make_shared<Advice>(*this, std::move(rows)), /*urgent=*/true);
}

// Null if no field needs one.
SlotPool::Lease Pipeline::State::workspace() {
  const std::size_t bytes = gather_->workspace_bytes();
  if (bytes == 0) return nullptr;
  SlotPool::Lease kept = workspaces_->try_acquire(bytes);
  return kept ? kept : workspaces_->fresh(bytes);
}

void Pipeline::State::sampled(bool resident) {
  const std::lock_guard lock(mutex_);
  if (!closed_) count_warm(!resident, resident ? 1 : 0);
}

void Pipeline::State::count_warm(bool cold, std::size_t resident) {
  warm_samples_ = cold ? 0 : warm_samples_ + resident;
  if (cold_ && warm_samples_ >= kWarmSamples) turn_warm();
}

void Pipeline::State::piece_done(Filling& filling, Clock::duration spent, const Filled& found, long major_faults) {
  const std::lock_guard lock(mutex_);
  stats_.gather_seconds += seconds(spent);
  stats_.decode_seconds += seconds(found.decoding);
  stats_.major_faults += static_cast<std::uint64_t>(major_faults);
  stats_.direct_bytes += found.direct_bytes;
  stats_.cached_bytes += found.cached_bytes;
  if (--filling.remaining == 0) {
    --unready_;
    note_ring();
    if (in_flight_.empty() || in_flight_.front().get() == &filling) ready_.notify_all();
  }
  if (closed_) return;
  if (!cold_) {
    if (!found.in_cache || major_faults > 0) turn_cold();
  } else if (direct_) {
    count_warm(found.direct_bytes > 0 || found.refused, found.resident_reads);
    if (found.refused) stop_direct_reads();
  }
}

void Pipeline::State::slot_came_back() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    pump();
  } catch (...) {  // out of memory here has nobody to go to; next() tries again and tells
  }
}

// The ring is full while nothing is being gathered although the plan has more.
void Pipeline::State::note_ring() {
  const bool full = unready_ == 0 && plan_.ready() && !closed_;
  if (full == ring_full_since_.has_value()) return;
  if (full) {
    ring_full_since_ = Clock::now();
  } else {
    stats_.ring_full_seconds += seconds(Clock::now() - *ring_full_since_);
    ring_full_since_.reset();
  }
}

Step Pipeline::State::next(Batch& batch, std::chrono::milliseconds patience, bool help) {
  const Clock::time_point start_time = Clock::now();
  const Clock::time_point deadline = start_time + patience;
  std::deque<std::shared_ptr<Filling>> dropped;  // a lease that ends takes the mutex: not before it is let go
  std::unique_lock lock(mutex_);
  const auto complete = [this] { return this->complete(); };
  Step step = Step::waiting;
  while (step == Step::waiting) {
    pump();
    if (closed_ || (in_flight_.empty() && plan_.ended())) {
      step = Step::end;
    } else if (unlanded()) {
      step = Step::unlanded;
    } else if (in_flight_.empty() && plan_.ready() && !departed_.empty()) {
      wait_for_slot(lock);
    } else if (in_flight_.empty() && plan_.ready()) {  // every slot is lent: this batch gets memory of its own
      SlotPool::Lease slot = pool_->fresh(slot_bytes_);
      start(std::move(slot), plan_.take(), /*fresh=*/true);
    } else if (in_flight_.empty()) {
      step = Step::unplanned;
    } else if (complete()) {
      step = Step::batch;
    } else {
      const std::shared_ptr<Workers> workers = workers_;
      const bool was_calm = std::exchange(calm_, false);
      lock.unlock();
      if (was_calm) workers->wake(*crew_);
      // Not where reads wait for a disk: the timeout, and Ctrl-C, would wait for it, too.
      const bool helped = help && !cold_ && !past_cache() && workers->help(*crew_);
      lock.lock();
      if (helped) {
        ++stats_.helped_pieces;
      } else if (!ready_.wait_until(lock, deadline, complete)) {
        break;
      }
      if (!complete() && Clock::now() >= deadline) break;
    }
  }
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

void Pipeline::State::hand_out(Batch& batch, std::deque<std::shared_ptr<Filling>>& dropped) {
  const std::shared_ptr<Filling> done = in_flight_.front();
  dropped.push_back(done);
  in_flight_.pop_front();
  if (done->error) {
    plan_ = PlanQueue(options_.batch_rows, options_.drop_last);
    plan_.finish();
    if (done->shipment) done->shipment->cancel();
    cancel_shipments();
    dropped.insert(dropped.end(), in_flight_.begin(), in_flight_.end());
    in_flight_.clear();
    ended_ = true;
    std::rethrow_exception(std::exchange(done->error, nullptr));  // the consumer is its only holder, and its end
  }
  batch.slot.swap(done->slot);  // what the caller's batch held before ends with the dropped
  if (done->shipment) depart(batch, *done);
  batch.rows = done->rows.size();
  batch.outputs = gather_->outputs(done->layout);
  ++stats_.batches;
  stats_.rows += batch.rows;
  stats_.bytes_in += bytes_in(done->layout);
  for (const BatchLayout::Share& share : done->layout.shares) stats_.bytes_out += share.plan->bytes;
  if (done->fresh) ++stats_.fresh_batches;
}

// The batch leaves its slot behind, until its copies are done.
void Pipeline::State::depart(Batch& batch, const Filling& filling) {
  const Device::Event copied = filling.shipment->event();
  departed_.push_back({std::exchange(batch.slot, nullptr), copied});
  batch.kept_begin = filling.shipment->kept_begin();
  stats_.copied_bytes += filling.layout.bytes;
  stats_.copies += filling.shipment->copies();
  options_.route->device->wait(options_.route->work, copied);
}

// The lease that is handed out starts the next batch when it ends. The slot's own lease lies inside it.
SlotPool::Lease Pipeline::State::waking(SlotPool::Lease slot) {
  std::byte* const data = slot.get();
  return {data, [slot = std::move(slot), state = weak_from_this(), born = born_](std::byte*) mutable {
            slot.reset();
            if (born != fork_generation()) return;
            if (const std::shared_ptr<State> alive = state.lock()) alive->slot_came_back();
          }};
}

bool Pipeline::State::close(bool keep_slots, std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    cancel_shipments();
    note_ring();
    ready_.notify_all();
  }
  if (workers_ && !workers_->drain(*crew_, patience)) return false;
  give_back(keep_slots);
  return true;
}

void Pipeline::State::forsake(bool keep_slots) {
  if (workers_) workers_->forsake(*crew_);
  workers_.reset();
  give_back(keep_slots);
}

void Pipeline::State::give_back(bool keep_slots) {
  std::deque<std::shared_ptr<Filling>> dropped;  // their leases end without the mutex
  std::deque<Departed> departed;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(in_flight_);
    departed.swap(departed_);
  }
  if (options_.route && pool_) wait_for_copies();
  dropped.clear();
  departed.clear();
  scratch_->close();
  workspaces_->close();
  if (keep_slots) return;
  workers_.reset();
  if (pool_) pool_->close();
}

// Slots of batches that were given up are being copied from as well.
void Pipeline::State::wait_for_copies() noexcept {
  try {
    options_.route->device->synchronise(options_.route->device->record(options_.route->copies));
  } catch (const std::exception&) {  // the device is lost, or the process ends: nothing is copied any more
  }
}

PipelineStats Pipeline::State::stats() const {
  const std::lock_guard lock(mutex_);
  PipelineStats copy = stats_;
  if (ring_full_since_) copy.ring_full_seconds += seconds(Clock::now() - *ring_full_since_);
  return copy;
}

Pipeline::Pipeline(const std::vector<FieldSpec>& fields, const PipelineOptions& options, Pipeline* reuse)
    : state_(std::make_shared<State>(fields, options, reuse == nullptr ? nullptr : reuse->state_.get())) {}

Pipeline::~Pipeline() {
  if (state_->in_child()) {
    // Its locks may be held and its threads are not here: leave it as it is, for ever.
    [[maybe_unused]] auto* left = new std::shared_ptr<State>(std::move(state_));
    return;
  }
  if (!state_->close(/*keep_slots=*/false, kLongestClose)) state_->forsake(/*keep_slots=*/false);
}

Pipeline::State& Pipeline::here() const {
  if (state_->in_child()) {
    throw ForkedError(
        "this iterator was made before the process was forked, and its threads stayed with the parent; "
        "call iter(loader) again in the child");
  }
  return *state_;
}

void Pipeline::extend(Rows rows) { here().plan(std::move(rows), /*whole=*/false); }
void Pipeline::push(Rows rows) { here().plan(std::move(rows), /*whole=*/true); }
void Pipeline::finish() { here().finish(); }
Step Pipeline::next(Batch& batch, std::chrono::milliseconds patience, bool help) {
  return here().next(batch, patience, help);
}
bool Pipeline::ready() { return here().ready(); }
std::optional<MemoryNeed> Pipeline::need() { return here().need(); }
void Pipeline::land(const Landing& memory, std::shared_ptr<void> owner) { here().land(memory, std::move(owner)); }
bool Pipeline::close(bool keep_slots, std::chrono::milliseconds patience) { return here().close(keep_slots, patience); }
void Pipeline::forsake(bool keep_slots) { here().forsake(keep_slots); }
std::size_t Pipeline::outputs(std::size_t field) const { return state_->outputs(field); }
PipelineStats Pipeline::stats() const { return here().stats(); }

std::size_t Pipeline::ring_bytes(const Gather& gather, std::size_t slot_rows, int depth) {
  return (static_cast<std::size_t>(depth) + 1) * mapped_bytes(gather.slot_bytes(slot_rows));
}

std::size_t Pipeline::workspace_bytes(const Gather& gather, int threads) {
  const std::size_t bytes = gather.workspace_bytes();
  return bytes == 0 || threads == 0 ? 0 : (static_cast<std::size_t>(threads) + 1) * mapped_bytes(bytes);
}

}  // namespace memload
