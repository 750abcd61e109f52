// Batches on their way to a device whose copies are late: unspoilt, in order, and no slot filled too early.
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/pass/async_copy.h"
#include "core/pass/pipeline.h"
#include "core/slots/pinned.h"
#include "core/slots/slot_pool.h"
#include "tests/check.h"
#include "tests/fixtures.h"
#include "tests/passes.h"
#include "tests/simulated/device.h"

namespace {

using memload::AsyncCopy;
using memload::Batch;
using memload::BatchLayout;
using memload::Column;
using memload::CopiesInFlight;
using memload::DestinationBuffer;
using memload::DeviceBuffers;
using memload::DeviceError;
using memload::DeviceRing;
using memload::FieldPlan;
using memload::FieldSpec;
using memload::finished_bytes;
using memload::Lateness;
using memload::PinnedSource;
using memload::Pipeline;
using memload::PipelineOptions;
using memload::Route;
using memload::Rows;
using memload::SimulatedDevice;
using memload::SimulatedMemory;
using memload::SlotPool;
using memload::Step;
using memload::test::ColumnPtr;
using memload::test::dense;
using memload::test::in_memory;
using memload::test::Indices;
using memload::test::kPatience;
using memload::test::numbered;
using memload::test::pattern_bytes;
using memload::test::rows_of;
using memload::test::same;
using memload::test::shuffled;
using namespace std::chrono_literals;

constexpr std::size_t kNoLimit = std::size_t{1} << 40;

// A device, its streams, and a pass over columns of which the first is in the passing part.
struct Bench {
  std::shared_ptr<SimulatedDevice> device = SimulatedDevice::create();
  Route route;
  std::vector<ColumnPtr> columns;
  std::optional<DeviceBuffers> buffers;

  explicit Bench(std::vector<ColumnPtr> of, Lateness copies = {}, Lateness work = {})
      : route{device, device->add_stream(copies, 1), device->add_stream(work, 2), 1}, columns(std::move(of)) {}

  [[nodiscard]] std::unique_ptr<Pipeline> pass(const Indices& rows, std::size_t batch_rows, int depth, int threads,
                                               std::size_t pinned = kNoLimit, bool whole = true) const {
    PipelineOptions options;
    options.batch_rows = options.slot_rows = batch_rows;
    options.depth = depth;
    options.threads = threads;
    options.route = route;
    options.buffers = buffers;
    options.slots = PinnedSource(device, pinned);
    std::vector<FieldSpec> fields;
    for (const ColumnPtr& column : columns) fields.push_back({column, {}});
    auto pipeline = std::make_unique<Pipeline>(fields, options);
    if (whole) {
      pipeline->extend(rows_of(rows));
      pipeline->finish();
    }
    return pipeline;
  }
};

// What a consumer has of a batch: two parts in memory of the device, and what was read of them in the stream of work.
struct Parts {
  SimulatedMemory::Lease passing;
  SimulatedMemory::Lease kept;
};

struct Read {
  std::vector<std::shared_ptr<std::vector<std::byte>>> fields;
  std::size_t first = 0;
  std::size_t rows = 0;
};

class Consumer {
 public:
  Consumer(Bench& bench, Pipeline& pipeline) : bench_(bench), pipeline_(pipeline) {}

  // False at the end. Reads of the batch are put into the stream of work, and its memory let go.
  bool take() {
    Batch batch;
    Step step = Step::needs_destination;
    while ((step = pipeline_.next(batch, kPatience)) == Step::needs_destination) give_destination();
    if (step != Step::batch) return false;
    const Parts parts = std::move(parts_.front());
    parts_.pop_front();
    Read read;
    read.first = seen_;
    read.rows = batch.row_numbers.size();
    for (std::size_t f = 0; f < bench_.columns.size(); ++f) {
      const bool kept = f >= bench_.route.kept_from;
      const std::size_t offset = batch.outputs[f].offset - (kept ? batch.kept_begin : 0);
      const std::byte* const at = (kept ? parts.kept : parts.passing).get() + offset;
      read.fields.push_back(
          bench_.device->read(at, batch.row_numbers.size() * bench_.columns[f]->row_bytes(), bench_.route.work));
    }
    bench_.device->hold(parts.passing.get(), bench_.route.work);
    bench_.device->hold(parts.kept.get(), bench_.route.work);
    seen_ += batch.row_numbers.size();
    reads_.push_back(std::move(read));
    return true;
  }

  // Rows that were read as the plan says; -1 if one was not.
  std::int64_t right(const Indices& plan) {
    SimulatedDevice::await(bench_.device->mark(bench_.route.work));
    std::int64_t rows = 0;
    for (const Read& read : reads_) {
      for (std::size_t f = 0; f < bench_.columns.size(); ++f) {
        const std::size_t n = bench_.columns[f]->row_bytes();
        for (std::size_t i = 0; i < read.rows; ++i) {
          const std::byte* const want = bench_.columns[f]->at(plan[read.first + i]).data;
          if (!same(read.fields[f]->data() + i * n, want, n)) return -1;
        }
      }
      rows += static_cast<std::int64_t>(read.rows);
    }
    return rows;
  }

 private:
  void give_destination() {
    while (const auto need = pipeline_.needed_destination()) {
      Parts parts{bench_.device->empty(need->first, bench_.route.copies),
                  bench_.device->empty(need->second, bench_.route.copies)};
      parts_.push_back(parts);
      pipeline_.set_destination({parts.passing.get(), parts.kept.get()});
    }
  }

  Bench& bench_;
  Pipeline& pipeline_;
  std::deque<Parts> parts_;
  std::vector<Read> reads_;
  std::size_t seen_ = 0;
};

// Runs a pass to its end, or for so many batches.
std::int64_t run(Bench& bench, Pipeline& pipeline, const Indices& plan, int batches = 1 << 20) {
  Consumer consumer(bench, pipeline);
  while (batches-- > 0 && consumer.take()) {
  }
  return consumer.right(plan);
}

TEST(batches_reach_the_device_as_they_were_planned) {
  const Indices plan = shuffled(103, 1);
  for (const int depth : {1, 2, 5}) {
    for (const int threads : {1, 3}) {
      for (const std::size_t batch_rows : {1u, 10u, 200u}) {
        Bench bench({numbered(103, 700, 1), numbered(103, 4, 2)});
        const auto pipeline = bench.pass(plan, batch_rows, depth, threads);
        CHECK_EQ(run(bench, *pipeline, plan), 103);
        CHECK(bench.device->violations().empty());
      }
    }
  }
}

TEST(slots_are_not_filled_before_late_copies_are_done) {
  const Indices plan = shuffled(120, 2);
  for (const Lateness late : {Lateness{1ms, 3ms}, Lateness{0us, 5ms}}) {
    Bench bench({numbered(120, 9000, 1), numbered(120, 16, 2)}, late, Lateness{0us, 200us});
    const auto pipeline = bench.pass(plan, 4, 2, 2);
    CHECK_EQ(run(bench, *pipeline, plan), 120);
    CHECK(bench.device->violations().empty());
    CHECK(pipeline->stats().copy_wait_seconds > 0);
    CHECK_EQ(pipeline->stats().copied_bytes, bench.device->counts()["copied_bytes"]);
  }
}

TEST(a_large_batch_goes_in_slices_and_small_fields_together) {
  const Indices plan = shuffled(24, 3);
  Bench bench({numbered(24, 1 << 20, 1), numbered(24, 8, 2), numbered(24, 4, 3)});
  const auto pipeline = bench.pass(plan, 12, 1, 2);
  CHECK_EQ(run(bench, *pipeline, plan), 24);
  const auto copies = pipeline->stats().copies;
  CHECK(copies >= 4);  // 12 MB each: more than one slice
  CHECK(copies <= 2 * (12 + 1));
  Bench small({numbered(24, 64, 1), numbered(24, 8, 2), numbered(24, 4, 3)});
  const auto tiny = small.pass(plan, 12, 1, 2);
  CHECK_EQ(run(small, *tiny, plan), 24);
  CHECK_EQ(tiny->stats().copies, 4u);  // of each of two batches the part that passes, and the part that is kept
}

TEST(what_is_finished_from_the_front_on_counts_fields_in_their_order) {
  BatchLayout layout;
  for (const bool in_order : {true, false, true}) {
    auto plan = std::make_unique<FieldPlan>();
    plan->bytes = 100;
    plan->work = in_order ? 100 : 1000;
    plan->in_order = in_order;
    layout.shares.push_back({std::move(plan), layout.bytes, layout.work});
    layout.bytes += 128;
    layout.work += in_order ? 128 : 1024;
  }
  CHECK_EQ(finished_bytes(layout, 0), 0u);
  CHECK_EQ(finished_bytes(layout, 64), 64u);
  CHECK_EQ(finished_bytes(layout, 120), 128u);        // the padding behind a field
  CHECK_EQ(finished_bytes(layout, 128 + 900), 128u);  // of what is not written in order nothing, until all is done
  CHECK_EQ(finished_bytes(layout, 128 + 1000), 256u);
  CHECK_EQ(finished_bytes(layout, 128 + 1024 + 64), 256u + 64u);
  CHECK_EQ(finished_bytes(layout, layout.work), layout.bytes);
}

TEST(pieces_are_copied_in_their_order_whichever_is_done_first) {
  Bench bench({});
  std::vector<std::byte> slot = pattern_bytes(3 * AsyncCopy::kSlice, 5);
  const auto destination = bench.device->empty(slot.size(), bench.route.copies);
  bench.device->register_host(slot.data(), slot.size());
  AsyncCopy copy(bench.route, slot.data(), slot.size(),
                 {AsyncCopy::kSlice, 2 * AsyncCopy::kSlice, 3 * AsyncCopy::kSlice});
  copy.piece_done(1);
  copy.set_destination({destination.get(), nullptr});
  CHECK_EQ(copy.copies(), 0u);
  copy.piece_done(0);
  CHECK_EQ(copy.copies(), 1u);  // both at once
  CHECK(!copy.issued());
  copy.piece_done(2);
  CHECK(copy.issued());
  bench.device->synchronise(copy.event());
  CHECK(same(destination.get(), slot.data(), slot.size()));
  bench.device->unregister_host(slot.data());
}

// Memory that is not pinned is copied when the stream has come to it, and the stream is held up here.
TEST(a_copy_from_pageable_memory_holds_up_nobody_but_the_thread_that_makes_it) {
  Bench bench({});
  const std::vector<std::byte> slot = pattern_bytes(3 * AsyncCopy::kSlice, 5);
  const auto destination = bench.device->empty(slot.size(), bench.route.copies);
  const auto gate = SimulatedDevice::gate();
  bench.device->follow(bench.route.copies, gate);
  AsyncCopy copy(bench.route, slot.data(), slot.size(),
                 {AsyncCopy::kSlice, 2 * AsyncCopy::kSlice, 3 * AsyncCopy::kSlice});
  copy.set_destination({destination.get(), nullptr});
  std::jthread held([&] { copy.piece_done(0); });
  while (bench.device->counts()["copy"] == 0) std::this_thread::yield();
  auto others = std::async(std::launch::async, [&] {
    copy.piece_done(1);
    copy.piece_done(2);
    return copy.issued();
  });
  const bool free = others.wait_for(kPatience) == std::future_status::ready;
  SimulatedDevice::open(gate);
  CHECK(free);
  CHECK(!others.get());
  held.join();
  CHECK(copy.issued());  // the thread that was held up has copied all
  CHECK_EQ(copy.copies(), 2u);
  bench.device->synchronise(copy.event());
  CHECK(same(destination.get(), slot.data(), slot.size()));
}

TEST(a_copy_that_is_cancelled_meanwhile_goes_no_further) {
  Bench bench({});
  const std::vector<std::byte> slot = pattern_bytes(2 * AsyncCopy::kSlice, 5);
  const auto destination = bench.device->empty(slot.size(), bench.route.copies);
  const auto gate = SimulatedDevice::gate();
  bench.device->follow(bench.route.copies, gate);
  AsyncCopy copy(bench.route, slot.data(), slot.size(), {AsyncCopy::kSlice, 2 * AsyncCopy::kSlice});
  copy.set_destination({destination.get(), nullptr});
  std::jthread held([&] { copy.piece_done(0); });
  while (bench.device->counts()["copy"] == 0) std::this_thread::yield();
  copy.piece_done(1);
  copy.cancel();
  SimulatedDevice::open(gate);
  held.join();
  CHECK_EQ(copy.copies(), 1u);
  CHECK(!copy.issued());
}

// The loop's thread goes on, and so do other passes.
TEST(a_pass_whose_copies_are_held_up_answers_meanwhile) {
  const Indices plan = shuffled(60, 6);
  Bench bench({numbered(60, 5000, 1), numbered(60, 4, 2)});
  const auto gate = SimulatedDevice::gate();
  bench.device->follow(bench.route.copies, gate);
  const auto pipeline = bench.pass(plan, 4, 3, 2, /*pinned=*/0);
  const auto need = pipeline->needed_destination();
  CHECK(need.has_value());
  const auto passing = bench.device->empty(need->first, bench.route.copies);
  const auto kept = bench.device->empty(need->second, bench.route.copies);
  std::jthread giving([&] { pipeline->set_destination({passing.get(), kept.get()}, nullptr); });
  while (bench.device->counts()["copy"] == 0) std::this_thread::yield();
  auto asked = std::async(std::launch::async, [&] { return pipeline->stats().batches + pipeline->ready(); });
  const bool free = asked.wait_for(kPatience) == std::future_status::ready;
  SimulatedDevice::open(gate);
  CHECK(free);
  CHECK_EQ(asked.get(), 0u);
  giving.join();
  CHECK(pipeline->close());
}

TEST(slices_grow_from_the_first_which_is_short_to_the_longest) {
  constexpr std::size_t kPieces = 13;
  Bench bench({});
  std::vector<std::byte> slot = pattern_bytes(kPieces * AsyncCopy::kSlice, 6);
  const auto destination = bench.device->empty(slot.size(), bench.route.copies);
  bench.device->register_host(slot.data(), slot.size());
  std::vector<std::size_t> ready;
  for (std::size_t i = 1; i <= kPieces; ++i) ready.push_back(i * AsyncCopy::kSlice);
  AsyncCopy copy(bench.route, slot.data(), slot.size(), ready);
  copy.set_destination({destination.get(), nullptr});
  std::vector<std::size_t> ends;  // of slices, in pieces
  for (std::size_t i = 0; i < kPieces; ++i) {
    const std::size_t before = copy.copies();
    copy.piece_done(i);
    if (copy.copies() != before) ends.push_back(i + 1);
  }
  CHECK(ends == (std::vector<std::size_t>{1, 3, 7, 11, kPieces}));  // 4, 8, 16 and 16 MB, and the rest
  bench.device->synchronise(copy.event());
  CHECK(same(destination.get(), slot.data(), slot.size()));
  bench.device->unregister_host(slot.data());
}

TEST(slots_come_back_in_the_order_of_their_copies_once_these_are_done) {
  const auto device = SimulatedDevice::create();
  const auto late = device->record(device->add_stream({20ms, 20ms}));
  const auto early = device->record(device->add_stream({}));
  const auto pool = SlotPool::create(2);
  CopiesInFlight copies;
  copies.add(pool->try_acquire(64), late);
  copies.add(pool->try_acquire(64), early);
  device->synchronise(early);
  copies.reclaim(*device);
  CHECK(pool->try_acquire(64) == nullptr || SimulatedDevice::has_come(late));
  if (!copies.empty()) device->synchronise(copies.next());
  copies.reclaim(*device);
  CHECK(copies.empty());
  CHECK(pool->try_acquire(64) != nullptr);
}

TEST(a_pass_that_is_given_up_leaves_no_copy_behind) {
  const Indices plan = shuffled(400, 4);
  for (int batches = 0; batches < 5; ++batches) {
    Bench bench({numbered(400, 3000, 1), numbered(400, 4, 2)}, {0us, 2ms});
    auto pipeline = bench.pass(plan, 5, 3, 2);
    CHECK_EQ(run(bench, *pipeline, plan, batches), 5 * batches);
    CHECK(pipeline->close());
    pipeline.reset();
    CHECK_EQ(bench.device->pinned_bytes(), 0u);  // and nothing was unpinned under a copy
    CHECK(bench.device->violations().empty());
  }
}

TEST(a_row_that_is_not_there_ends_the_pass_in_its_turn) {
  Bench bench({numbered(20, 300, 1), numbered(20, 4, 2)}, {0us, 2ms});
  Indices plan = shuffled(20, 5);
  plan[13] = 99;
  const auto pipeline = bench.pass(plan, 5, 3, 2);
  Consumer consumer(bench, *pipeline);
  CHECK(consumer.take());
  CHECK(consumer.take());
  CHECK_THROWS(std::out_of_range, consumer.take());
  CHECK(!consumer.take());
  CHECK_EQ(consumer.right(plan), 10);
  CHECK(bench.device->violations().empty());
}

TEST(slots_beyond_the_limit_are_pageable_and_batches_the_same) {
  const Indices plan = shuffled(60, 6);
  Bench bench({numbered(60, 5000, 1), numbered(60, 4, 2)}, {0us, 1ms});
  for (const std::size_t limit : {std::size_t{0}, memload::mapped_bytes(20'100)}) {
    const auto pipeline = bench.pass(plan, 4, 3, 2, limit);
    CHECK_EQ(run(bench, *pipeline, plan), 60);
    CHECK(bench.device->violations().empty());
    CHECK(bench.device->pinned_bytes() <= limit);
  }
}

TEST(memory_that_the_device_does_not_pin_is_replaced_and_the_refusal_told) {
  const auto device = SimulatedDevice::create(10'000);
  PinnedSource source(device, kNoLimit);
  const auto first = source(8192);
  CHECK_EQ(device->pinned_bytes(), 8192u);
  CHECK(source.refusal().empty());
  const auto second = source(8192);
  CHECK(second.data != nullptr);
  CHECK_EQ(source.pinned_bytes(), 8192u);
  CHECK(source.refusal().find("10000 can be pinned") != std::string::npos);
  PinnedSource limited(SimulatedDevice::create(), 4096);
  CHECK(limited(8192).data != nullptr);
  CHECK(limited.refusal().find("limit of 4096 bytes") != std::string::npos);
}

// The policy that the kernel shows for the mapping that begins at this address; "" where it knows of no nodes.
std::string policy_of(const std::byte* at) {
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::array<char, 64> policy{};
    if (std::sscanf(line.c_str(), "%lx %63s", &begin, policy.data()) == 2 && begin == std::uintptr_t(at))
      return policy.data();
  }
  return "";
}

TEST(slots_lie_on_the_node_that_is_named_unless_the_program_has_a_policy_of_its_own) {
  const std::string usual = policy_of(PinnedSource(SimulatedDevice::create(), kNoLimit)(8192).data);
  PinnedSource near(SimulatedDevice::create(), kNoLimit, 0);
  const memload::SlotMemory slot = near(8192);
  CHECK(policy_of(slot.data).starts_with("prefer") || usual.empty());
  unsigned long nodes = 1;
  if (::syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &nodes, 2UL) != 0)
    return;  // a kernel without nodes, or that forbids it
  const memload::SlotMemory own = near(3 << 20);
  CHECK(policy_of(own.data).starts_with("interleave"));
  CHECK(::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL) == 0);
  PinnedSource nowhere(SimulatedDevice::create(), kNoLimit, 1000);  // the kernel refuses
  CHECK(nowhere(8192).data != nullptr);
}

// The flags that the kernel shows for the mapping of this address.
std::string flags_of(const std::byte* at) {
  std::ifstream smaps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= address && address < end;
    if (here && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

TEST(registered_slots_are_withheld_from_forked_children) {
  const auto device = SimulatedDevice::create();
  for (const std::size_t bytes : {std::size_t{5000}, std::size_t{5} << 20}) {
    const auto slot = memload::pinned_memory(device, bytes);
    CHECK(flags_of(slot.data).find(" dc ") != std::string::npos);
    CHECK(flags_of(slot.data + slot.size - 1).find(" dc ") != std::string::npos);
    CHECK(flags_of(memload::huge_memory(bytes).data).find(" dc ") == std::string::npos);
    const pid_t child = ::fork();
    if (child == 0) {  // what is not here is not given back either, whatever lies at its addresses now
      void* const other = ::mmap(slot.data, slot.size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      const_cast<memload::SlotMemory&>(slot).owner.reset();
      ::_exit(other == slot.data && ::msync(other, slot.size, MS_ASYNC) == 0 ? 0 : 1);
    }
    int status = 0;
    CHECK_EQ(::waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
  CHECK_EQ(device->pinned_bytes(), 0u);
}

TEST(borrowed_memory_is_gathered_into_and_let_go_with_the_batch) {
  const std::vector<ColumnPtr> columns = {numbered(50, 700, 1), numbered(50, 4, 2)};
  const Indices plan = shuffled(50, 7);
  PipelineOptions options;
  options.batch_rows = options.slot_rows = 8;
  options.threads = 2;
  options.borrowed = true;
  Pipeline pipeline({{columns[0], {}}, {columns[1], {}}}, options);
  pipeline.extend(rows_of(plan));
  pipeline.finish();
  std::deque<std::shared_ptr<std::vector<std::byte>>> borrowed;
  std::size_t seen = 0;
  Batch batch;
  for (Step step = Step::needs_destination; step != Step::end; step = pipeline.next(batch, kPatience)) {
    if (step == Step::needs_destination) {
      while (const auto need = pipeline.needed_destination()) {
        borrowed.push_back(std::make_shared<std::vector<std::byte>>(need->first));
        pipeline.set_destination({borrowed.back()->data(), nullptr}, borrowed.back());
      }
      continue;
    }
    CHECK(!batch.slot);
    const auto memory = std::move(borrowed.front());
    borrowed.pop_front();
    for (std::size_t i = 0; i < batch.row_numbers.size(); ++i) {
      const std::byte* const got = memory->data() + batch.outputs[0].offset + i * 700;
      CHECK(same(got, columns[0]->at(plan[seen + i]).data, 700));
    }
    seen += batch.row_numbers.size();
    CHECK_EQ(memory.use_count(), 1);
  }
  CHECK_EQ(seen, 50u);
}

// A block whose lease has ended waits in the first stream for `slow`; `reader` is amid it when the device ends.
// As rows in pinned RAM come to a kernel that gathers the rest by itself: batch by batch, each of as many rows as lie
// there, all in the first part, and by two passes, where the same rows of two fields lie in different memories.
TEST(batches_that_are_planned_one_by_one_for_two_passes_of_one_route_are_there_for_the_work_that_follows) {
  Bench first({numbered(150, 9000, 1), numbered(150, 40, 2)}, {0us, 2ms}, {0us, 300us});
  first.route.kept_from = 2;
  Bench second = first;
  second.columns = {numbered(150, 700, 3)};
  second.route.kept_from = 1;
  const auto one = first.pass({}, 8, 2, 2, kNoLimit, /*whole=*/false);
  const auto other = second.pass({}, 8, 2, 2, kNoLimit, /*whole=*/false);
  Consumer of_one(first, *one);
  Consumer of_other(second, *other);
  Indices plan;
  for (std::size_t batch = 0; batch < 24; ++batch) {
    const Indices rows = shuffled(1 + batch % 8, static_cast<unsigned>(batch));
    one->push(rows_of(rows));
    other->push(rows_of(rows));
    plan.insert(plan.end(), rows.begin(), rows.end());
    if (batch == 0) continue;  // there are two ahead
    CHECK(of_one.take());
    CHECK(of_other.take());
  }
  CHECK(of_one.take());
  CHECK(of_other.take());
  CHECK_EQ(of_one.right(plan), static_cast<std::int64_t>(plan.size()));
  CHECK_EQ(of_other.right(plan), static_cast<std::int64_t>(plan.size()));
  CHECK(first.device->violations().empty());
}

TEST(a_device_that_ends_unmaps_nothing_that_a_stream_still_reads) {
  auto device = SimulatedDevice::create();
  const auto slow = device->add_stream({10s, 10s});
  const auto reader = device->add_stream({0us, 0us});
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  auto lease = device->empty(kBytes, slow);
  device->watch(lease.get(), kBytes, reader);
  lease.reset();
  std::this_thread::sleep_for(5ms);
  device.reset();
}

// A pass to buffers of the device, which its consumer reads late. Rows that were read as the plan says; -1 if one was
// not. early: a buffer is released before what reads it is in its stream.
std::int64_t run_in_buffers(Bench& bench, const Indices& plan, std::size_t batch_rows, int depth, bool early = false) {
  constexpr std::size_t kBuffer = std::size_t{1} << 17;
  const auto count = static_cast<std::size_t>(depth);
  const SimulatedMemory::Lease memory = bench.device->empty(count * kBuffer, bench.route.copies);
  bench.device->hold(memory.get(), bench.route.work);
  bench.route.kept_from = bench.columns.size();
  bench.buffers = DeviceBuffers{memory.get(), count, kBuffer};
  const auto pipeline = bench.pass(plan, batch_rows, depth, 2);
  std::vector<std::shared_ptr<std::vector<std::byte>>> reads;
  Batch batch;
  for (std::size_t at = 0; pipeline->next(batch, kPatience) == Step::batch; at += batch.row_numbers.size()) {
    if (early) pipeline->release();
    const std::size_t bytes = batch.row_numbers.size() * bench.columns[0]->row_bytes();
    reads.push_back(bench.device->read(batch.passing + batch.outputs[0].offset, bytes, bench.route.work));
    if (!early) pipeline->release();
  }
  SimulatedDevice::await(bench.device->mark(bench.route.work));
  std::int64_t rows = 0;
  for (const auto& read : reads) {
    const std::size_t n = bench.columns[0]->row_bytes();
    for (std::size_t i = 0; i < read->size() / n; ++i, ++rows) {
      if (!same(read->data() + i * n, bench.columns[0]->at(plan[static_cast<std::size_t>(rows)]).data, n)) return -1;
    }
  }
  return rows;
}

TEST(buffers_of_the_device_are_used_in_turn_once_they_were_read) {
  const Indices plan = shuffled(203, 9);
  for (const int depth : {1, 2, 8}) {
    for (const std::size_t batch_rows : {1u, 8u}) {
      for (const Lateness late : {Lateness{0us, 200us}, Lateness{1ms, 2ms}}) {
        Bench bench({numbered(203, 9000, 1), numbered(203, 4, 2)}, {0us, 100us}, late);
        CHECK_EQ(run_in_buffers(bench, plan, batch_rows, depth), 203);
        CHECK(bench.device->violations().empty());
      }
    }
  }
}

TEST(a_buffer_that_is_not_released_is_asked_for) {
  const Indices plan = shuffled(9, 9);
  Bench bench({numbered(9, 100, 1)});
  CHECK_THROWS(std::logic_error, bench.pass(plan, 3, 1, 1)->release());
  const SimulatedMemory::Lease memory = bench.device->empty(4096, bench.route.copies);
  bench.buffers = DeviceBuffers{memory.get(), 1, 4096};
  const auto pipeline = bench.pass(plan, 3, 1, 1);
  CHECK_THROWS(std::logic_error, pipeline->release());
  Batch batch;
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  CHECK_THROWS(std::logic_error, pipeline->next(batch, kPatience));
  pipeline->release();
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  CHECK(pipeline->close());
}

TEST(a_batch_that_is_not_there_is_neither_waited_for_nor_gathered_where_it_is_asked_for) {
  const Indices plan = shuffled(9, 9);
  Bench bench({numbered(9, 100, 1)});
  const SimulatedMemory::Lease memory = bench.device->empty(4096, bench.route.copies);
  bench.buffers = DeviceBuffers{memory.get(), 1, 4096};
  const auto pipeline = bench.pass(plan, 3, 1, 1);
  Batch batch;
  const auto polled = [&] {
    Step step = Step::waiting;
    while (step == Step::waiting) step = pipeline->next_if_ready(batch);
    return step;
  };
  for (std::size_t at = 0; at < plan.size(); at += 3) {
    CHECK(polled() == Step::batch);
    CHECK(batch.row_numbers ==
          Indices(plan.begin() + static_cast<std::ptrdiff_t>(at), plan.begin() + static_cast<std::ptrdiff_t>(at) + 3));
    if (at + 3 < plan.size()) CHECK(pipeline->next_if_ready(batch) == Step::waiting);  // the buffer is not released
    pipeline->release();
  }
  CHECK(polled() == Step::end);
  CHECK_EQ(pipeline->stats().stolen_pieces, 0u);
}

TEST(a_batch_that_is_larger_than_a_buffer_is_an_error_at_its_turn) {
  Bench bench({numbered(9, 1000, 1)});
  const SimulatedMemory::Lease memory = bench.device->empty(4096, bench.route.copies);
  bench.buffers = DeviceBuffers{memory.get(), 1, 4096};
  const auto pipeline = bench.pass({}, 4, 1, 1, kNoLimit, /*whole=*/false);
  pipeline->push(rows_of({1, 2}));
  pipeline->push(rows_of({1, 2, 3, 4, 5}));
  Batch batch;
  CHECK(pipeline->next(batch, kPatience) == Step::batch);
  pipeline->release();
  CHECK_THROWS(std::length_error, pipeline->next(batch, kPatience));
}

TEST(a_ring_gives_its_buffers_in_turn_with_the_event_of_what_read_them) {
  std::array<std::byte, 64> memory{};
  DeviceRing ring(memory.data(), 2, 32);
  CHECK(ring.take(32).passing == memory.data());
  CHECK(ring.take(1).passing == memory.data() + 32);
  CHECK(!ring.has_free());
  const auto first = SimulatedDevice::gate();
  ring.release(first);
  CHECK(ring.has_free());
  const DestinationBuffer again = ring.take(32);
  CHECK(again.passing == memory.data());
  CHECK(again.free == first);
  CHECK(!ring.has_free());
  ring.release(nullptr);
  ring.release(nullptr);
  CHECK_EQ(ring.released(), 3u);
  CHECK_THROWS(std::length_error, ring.take(33));
}

#if !defined(__SANITIZE_THREAD__)  // what is broken on purpose races
TEST(a_buffer_that_is_released_before_it_was_read_shows) {
  const Indices plan = shuffled(120, 9);
  Bench bench({numbered(120, 9000, 1)}, {0us, 0us}, {2ms, 3ms});
  CHECK_EQ(run_in_buffers(bench, plan, 4, 2, /*early=*/true), -1);
}

// Each call that is left out shows, in a violation or in what is read.
TEST(no_call_of_the_transfer_can_be_left_out) {
  const Indices plan = shuffled(200, 8);
  for (const char* call : {"wait", "record", "done"}) {
    Bench bench({numbered(200, 9000, 1), numbered(200, 4, 2)}, {1ms, 2ms}, {0us, 100us});
    bench.device->leave_out(call);
    const auto pipeline = bench.pass(plan, 4, 2, 2);
    const bool wrong = run(bench, *pipeline, plan) == -1;
    CHECK(wrong || !bench.device->violations().empty());
  }
}

TEST(a_pass_that_is_given_up_without_waiting_for_its_copies_shows) {
  const Indices plan = shuffled(400, 4);
  Bench bench({numbered(400, 3000, 1), numbered(400, 4, 2)}, {300ms, 300ms});
  auto pipeline = bench.pass(plan, 5, 3, 2);
  Consumer consumer(bench, *pipeline);
  CHECK(consumer.take());
  bench.device->leave_out("synchronise");
  CHECK(pipeline->close());
  pipeline.reset();
  SimulatedDevice::await(bench.device->mark(bench.route.copies));
  CHECK(!bench.device->violations().empty());
}
#endif

}  // namespace

int main() { return memload::test::run(); }
