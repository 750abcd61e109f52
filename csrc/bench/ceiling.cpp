#include "bench/ceiling.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/base/fault_guard.h"

namespace memload::bench {
namespace {

constexpr std::size_t kSlots = 4;
constexpr std::size_t kShareAlign = 64;  // units: keeps the parts of two threads on cache lines of their own

void check_field(const CeilingField& field, std::size_t planned) {
  if (field.rows.size() != planned) throw std::invalid_argument("fields of the plan differ in their number of rows");
  if (field.row_bytes == 0) throw std::invalid_argument("a field of the plan has rows of zero bytes");
  if (field.cast && field.row_bytes % size_of(field.cast->from) != 0) {
    throw std::invalid_argument("a row is not a whole number of elements of the dtype that it is cast from");
  }
  const std::size_t run = field.run_bytes == 0 ? field.row_bytes : field.run_bytes;
  if (field.row_bytes % run != 0 || (field.cast && run % size_of(field.cast->from) != 0)) {
    throw std::invalid_argument("a row is not a whole number of runs, or a run no whole number of elements");
  }
}

// Huge-page memory that is touched beforehand, so that no page fault is timed.
HugeMemory touched_memory(std::size_t bytes) {
  HugeMemory memory(bytes);
  std::memset(memory.data(), 0, memory.size());
  return memory;
}

// Runs are read some way apart, so that the processor sees no pattern in them: they are asked for about so far ahead.
constexpr std::size_t kAhead = 4096;

void ask_for(const std::byte* at, std::size_t bytes) noexcept {
  constexpr std::size_t kCacheLine = 64;
  for (std::size_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(at + i);
  __builtin_prefetch(at + bytes - 1);
}

// Where the part of `thread` begins in a batch of `units`.
std::size_t share_begin(std::size_t thread, std::size_t threads, std::size_t units) {
  if (thread == threads) return units;
  return units * thread / threads / kShareAlign * kShareAlign;
}

}  // namespace

Ceiling::Ceiling(std::vector<CeilingField> fields, std::size_t batch_rows, std::size_t threads, Isa isa)
    : fields_(std::move(fields)), batch_rows_(batch_rows), threads_(threads) {
  if (fields_.empty() || batch_rows == 0 || threads == 0) {
    throw std::invalid_argument("the ceiling needs at least one field, one row per batch and one thread");
  }
  const std::size_t planned = fields_.front().rows.size();
  batches_in_plan_ = planned / batch_rows;
  if (batches_in_plan_ == 0) throw std::invalid_argument("the plan has fewer rows than one batch");
  std::size_t slot_bytes = 0;
  for (const CeilingField& field : fields_) {
    check_field(field, planned);
    Lane lane{.rows = field.rows, .units = field.row_bytes, .offset = slot_bytes};
    if (field.cast) {
      lane.in_size = size_of(field.cast->from);
      lane.out_size = size_of(field.cast->to);
      lane.units = field.row_bytes / lane.in_size;
    }
    lane.run = field.run_bytes == 0 ? lane.units : field.run_bytes / lane.in_size;
    lane.stride = field.run_stride;
    if (field.run_bytes != 0 && field.run_bytes < field.row_bytes) {
      lane.ahead = (kAhead + field.run_bytes - 1) / field.run_bytes;
    }
    for (const Store store : {Store::cached, Store::streaming}) {
      lane.move[static_cast<std::size_t>(store)] =
          field.cast ? find_cast(*field.cast, isa, store) : find_copy(isa, store);
    }
    const std::size_t field_bytes = batch_rows * lane.units * lane.out_size;
    batch_bytes_ += field_bytes;
    slot_bytes += round_up(field_bytes, kPage);
    lanes_.push_back(lane);
  }
  for (std::size_t i = 0; i < kSlots; ++i) slots_.push_back(memory_.emplace_back(touched_memory(slot_bytes)).data());
}

void Ceiling::gather_share(std::span<std::byte* const> slots, std::size_t thread, std::size_t batches,
                           Store store) const {
  for (std::size_t batch = 0; batch < batches; ++batch) {
    std::byte* const slot = slots[batch % slots.size()];
    const std::size_t first = batch % batches_in_plan_ * batch_rows_;
    for (const Lane& lane : lanes_) {
      const CastFn move = lane.move[static_cast<std::size_t>(store)];
      const std::size_t total = batch_rows_ * lane.units;
      const std::size_t end = share_begin(thread + 1, threads_, total);
      std::size_t at = share_begin(thread, threads_, total);
      std::size_t row = first + at / lane.units;
      std::size_t within = at % lane.units;
      while (at < end) {
        const std::size_t in_run = within % lane.run;
        const std::size_t n = std::min(lane.run - in_run, end - at);
        if (lane.ahead != 0 && within + lane.ahead * lane.run < lane.units) {
          ask_for(lane.rows[row] + (within / lane.run + lane.ahead) * lane.stride, lane.run * lane.in_size);
        }
        move(lane.rows[row] + within / lane.run * lane.stride + in_run * lane.in_size,
             slot + lane.offset + at * lane.out_size, n);
        at += n;
        within += n;
        if (within == lane.units) {
          ++row;
          within = 0;
        }
      }
    }
  }
  store_fence();
}

CeilingRun Ceiling::run(std::size_t batches, Store store) { return gather(slots_, batches, store); }

CeilingRun Ceiling::run_fresh(Store store) {
  const HugeMemory untouched(memory_.front().size());
  std::byte* const slot[] = {untouched.data()};
  return gather(slot, 1, store);
}

CeilingRun Ceiling::gather(std::span<std::byte* const> slots, std::size_t batches, Store store) const {
  install_fault_handler();
  const TeamTime time = run_team(threads_, [&](std::size_t thread) {
    const void* const fault = guarded([&] { gather_share(slots, thread, batches, store); });
    if (fault != nullptr) throw std::runtime_error("a file was cut short while its rows were read");
  });
  return {time, batches, batches * batch_rows_, batches * batch_bytes_};
}

std::span<const std::byte> Ceiling::written(std::size_t batch, std::size_t field) const {
  const Lane& lane = lanes_.at(field);
  return {slots_[batch % kSlots] + lane.offset, batch_rows_ * lane.units * lane.out_size};
}

CopyRun copy_rate(std::size_t nbytes, std::size_t threads, double seconds) {
  if (nbytes == 0 || threads == 0) throw std::invalid_argument("a copy needs at least one byte and one thread");
  const HugeMemory from = touched_memory(nbytes);
  const HugeMemory to = touched_memory(nbytes);
  std::atomic<std::size_t> copied = 0;  // a plain sum, read after the threads were joined: relaxed suffices
  const TeamTime time = run_team(threads, [&](std::size_t thread) {
    const std::size_t begin = share_begin(thread, threads, nbytes);
    const std::size_t n = share_begin(thread + 1, threads, nbytes) - begin;
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    do {
      std::memcpy(to.data() + begin, from.data() + begin, n);
      copied.fetch_add(n, std::memory_order_relaxed);
    } while (Clock::now() < until);
  });
  return {time, copied.load(std::memory_order_relaxed)};
}

}  // namespace memload::bench
