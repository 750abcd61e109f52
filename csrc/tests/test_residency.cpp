// Cold rows: what a pass takes them for, how many threads then read, and which rows are asked for ahead.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "core/gather/gather.h"
#include "core/pass/plan_queue.h"
#include "core/pass/read_ahead.h"
#include "core/pass/residency.h"
#include "core/pass/workers.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::AdviceTask;
using memload::FieldSpec;
using memload::Filled;
using memload::Gather;
using memload::Isa;
using memload::PlanQueue;
using memload::ReadAhead;
using memload::Residency;
using memload::ResidencyOptions;
using memload::Storage;
using memload::Store;
using memload::TaskGroup;
using memload::test::dense;
using memload::test::in_memory;
using memload::test::pattern_bytes;
using memload::test::ScratchFile;

using GatherPtr = std::shared_ptr<const Gather>;
using Indices = std::vector<std::int64_t>;

constexpr std::size_t kLarge = Gather::kLargeRow + 1;
// Whole pages of any system. Where blocks of the file system are smaller than a page, the kernel does not count a page
// as cached whose last blocks were never written.
constexpr std::size_t kWholePages = 65536;
constexpr ResidencyOptions kDirect{.threads = 2, .direct = true};

GatherPtr gather_of(std::shared_ptr<const Storage> storage, std::size_t row_bytes) {
  const std::vector<FieldSpec> fields = {{dense(storage, row_bytes), {}}};
  return std::make_shared<const Gather>(fields, Isa::scalar, Store::cached);
}

GatherPtr gather_in_memory(std::size_t rows, std::size_t row_bytes) {
  return gather_of(in_memory(pattern_bytes(rows * row_bytes)), row_bytes);
}

Filled missing() { return {.in_cache = false}; }
Filled read_directly() { return {.direct_bytes = kLarge}; }
Filled refused() { return {.refused = true}; }
Filled found_resident(std::size_t reads) { return {.resident_reads = reads}; }

Indices numbers(std::int64_t first, std::int64_t end) {
  Indices rows(static_cast<std::size_t>(end - first));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

PlanQueue planned(const Indices& rows, std::size_t batch_rows) {
  PlanQueue plan(batch_rows, /*drop_last=*/false);
  plan.extend({nullptr, rows});
  return plan;
}

TEST(rows_count_as_resident_until_a_piece_misses_one) {
  Residency residency(gather_in_memory(10, 100), {.threads = 3});
  CHECK(!residency.look(numbers(0, 10)));
  CHECK(!residency.filled({}, false));
  CHECK(!residency.cold());
  CHECK(residency.filled(missing(), false));
  CHECK(residency.cold());
  CHECK(!residency.filled(missing(), false));  // told once
  CHECK_EQ(residency.threads(), 3);            // nothing is read directly
}

TEST(a_miss_that_only_the_kernel_counted_makes_rows_cold_too) {
  Residency residency(gather_in_memory(10, 100), {});
  CHECK(residency.filled({}, /*missed_page_cache=*/true));
  CHECK(residency.cold());
}

TEST(so_many_resident_samples_in_a_row_end_the_asking) {
  Residency residency(gather_in_memory(10, 100), {});
  CHECK(residency.filled(missing(), false));
  for (std::size_t i = 0; i + 1 < Residency::kWarmSamples; ++i) residency.sampled(true);
  CHECK(residency.cold());
  residency.sampled(false);  // and from the beginning
  for (std::size_t i = 0; i + 1 < Residency::kWarmSamples; ++i) residency.sampled(true);
  CHECK(residency.cold());
  residency.sampled(true);
  CHECK(!residency.cold());
  CHECK(residency.filled(missing(), false));  // told again
}

TEST(direct_reads_take_more_threads_until_rows_are_resident_again) {
  const ScratchFile file(pattern_bytes(4 * kLarge));
  Residency residency(gather_of(Storage::map_file(file.path()), kLarge), kDirect);
  CHECK_EQ(residency.threads(), 2);
  CHECK(residency.filled(missing(), false));
  CHECK(residency.direct());
  CHECK_EQ(residency.threads(), Residency::kDirectReads);
  CHECK(!residency.filled(found_resident(Residency::kWarmSamples - 1), false));
  CHECK(!residency.filled(read_directly(), false));
  CHECK(!residency.filled(found_resident(Residency::kWarmSamples - 1), false));
  CHECK(residency.direct());
  CHECK(!residency.filled(found_resident(1), false));
  CHECK(!residency.cold());
  CHECK_EQ(residency.threads(), 2);
}

TEST(a_file_that_refuses_direct_reads_is_read_through_the_cache_from_then_on) {
  const ScratchFile file(pattern_bytes(4 * kLarge));
  Residency residency(gather_of(Storage::map_file(file.path()), kLarge), kDirect);
  CHECK(residency.filled(missing(), false));
  CHECK(residency.filled(refused(), false));  // what is under way has to be asked for in the other way
  CHECK(residency.cold());
  CHECK(!residency.direct());
  CHECK_EQ(residency.threads(), 2);
  CHECK(!residency.filled(refused(), false));
}

TEST(small_rows_and_whole_blocks_are_never_read_directly) {
  const ScratchFile file(pattern_bytes(4 * kLarge));
  Residency small(gather_of(Storage::map_file(file.path()), 100), kDirect);
  Residency blocks(gather_of(Storage::map_file(file.path()), kLarge), {.threads = 2, .direct = true, .blocks = true});
  for (Residency* residency : {&small, &blocks}) {
    CHECK(residency->filled(missing(), false));
    CHECK(!residency->direct());
    CHECK_EQ(residency->threads(), 2);
  }
}

TEST(what_is_due_runs_a_window_ahead_of_the_plan_and_comes_once) {
  const std::size_t row_bytes = ReadAhead::kBytes / 8;  // eight of them fill the queue
  const ScratchFile file({});
  file.truncate(20 * row_bytes);  // a hole, which nobody reads
  const auto gather = gather_of(Storage::map_file(file.path()), row_bytes);
  const Indices rows = numbers(0, 20);
  PlanQueue plan = planned(rows, 4);
  ReadAhead ahead(*gather, 4);
  CHECK(ahead.due(plan) == numbers(0, 8));
  CHECK(ahead.due(plan).empty());
  (void)plan.take();
  CHECK(ahead.due(plan) == numbers(8, 12));
  ahead.restart(plan);
  CHECK(ahead.due(plan) == numbers(4, 12));
  for (int i = 0; i < 3; ++i) (void)plan.take();
  CHECK(ahead.due(plan) == numbers(16, 20));  // the plan's end
}

TEST(the_window_is_a_batch_at_least_and_so_many_rows_at_most) {
  const auto gather = gather_in_memory(1000, 1);
  const Indices rows = numbers(0, 1000);
  CHECK_EQ(ReadAhead(*gather, 4).due(planned(rows, 4)).size(), ReadAhead::kRows);
  CHECK_EQ(ReadAhead(*gather, 700).due(planned(rows, 700)).size(), std::size_t{700});
}

TEST(rows_that_are_not_there_are_not_asked_for) {
  const auto gather = gather_in_memory(10, 1);
  const Indices rows = {3, -1, 10, 4};
  CHECK(ReadAhead(*gather, 4).due(planned(rows, 4)) == Indices({3, 4}));
}

TEST(a_row_of_each_piece_is_sampled_before_it_is_asked_for) {
  const ScratchFile file(pattern_bytes(100 * kWholePages));
  const auto gather = gather_of(Storage::map_file(file.path()), kWholePages);
  const auto residency = std::make_shared<const Residency>(gather, ResidencyOptions{});
  std::size_t sampled = 0;
  AdviceTask advice(
      std::make_shared<TaskGroup>(1), numbers(0, 100), gather, residency, /*blocks=*/false,
      [&sampled](std::optional<bool> resident, std::uint64_t) { sampled += resident.value_or(false) ? 1 : 0; });
  CHECK_EQ(advice.pieces(), std::size_t{7});  // of 16 rows
  for (std::size_t i = 0; i < advice.pieces(); ++i) advice.run(i);
  CHECK_EQ(sampled, std::size_t{7});  // the file was just written
}

}  // namespace

int main() { return memload::test::run(); }
