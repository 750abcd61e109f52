// The cache of the hybrid tier, and what is read past the page cache in front of it.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/gather/extents.h"
#include "core/gather/gather.h"
#include "core/io/row_cache.h"
#include "core/pass/pipeline.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::Batch;
using memload::CastRule;
using memload::Column;
using memload::DType;
using memload::FieldSpec;
using memload::gather_rows;
using memload::Isa;
using memload::Keeping;
using memload::kPage;
using memload::Pipeline;
using memload::PipelineOptions;
using memload::PipelineStats;
using memload::ReadError;
using memload::RowCache;
using memload::Rows;
using memload::RunKey;
using memload::Step;
using memload::Storage;
using memload::test::dense;
using memload::test::pattern_bytes;
using memload::test::same;
using memload::test::ScratchFile;
using memload::test::shuffled;
using namespace std::chrono_literals;

using Bytes = std::vector<std::byte>;

Keeping past_cache(std::shared_ptr<RowCache> cache = nullptr) {
  return {.past_cache = true, .cache = std::move(cache)};
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool holds(RowCache& cache, const RunKey& key, const Bytes& bytes) {
  bool right = false;
  const bool found =
      cache.find(key, bytes.size(), [&](const std::byte* data) { right = same(data, bytes.data(), bytes.size()); });
  CHECK(!found || right);
  return found;
}

// Asks for the row and offers it if it is not there, as a reader does. Returns whether it was there.
bool draw(RowCache& cache, std::uint64_t row, std::size_t row_bytes) {
  const Bytes bytes = pattern_bytes(row_bytes, row);
  const RunKey key{1, row * row_bytes};
  const bool held = holds(cache, key, bytes);
  if (!held) cache.offer(key, bytes);
  return held;
}

TEST(what_came_first_stays_while_every_row_is_drawn_once_an_epoch) {
  constexpr std::size_t kRow = 4096;
  constexpr std::int64_t kRows = 1000;
  RowCache cache(2 * kMiB);
  std::size_t hits = 0;
  for (unsigned epoch = 0; epoch < 6; ++epoch) {
    std::size_t now = 0;
    for (const std::int64_t row : shuffled(kRows, epoch)) now += draw(cache, static_cast<std::uint64_t>(row), kRow);
    if (epoch > 1) CHECK_EQ(now, hits);
    hits = now;
  }
  CHECK_EQ(cache.stats().displaced, 0u);
  CHECK(hits > 450 && hits < 512);  // 2 MiB of 4 MiB, without what the cache itself takes
  CHECK_EQ(cache.stats().entries, hits);
  CHECK(cache.stats().bytes <= 2 * kMiB);
}

TEST(rows_that_are_drawn_more_take_the_place_of_others) {
  constexpr std::size_t kRow = 4096;
  RowCache cache(kMiB);  // some 240 of 1,000 rows, of which the last 100 are drawn half of the time
  std::mt19937 random(7);
  const auto drawn = [&](int n) {
    std::size_t hits = 0;
    for (int i = 0; i < n; ++i) hits += draw(cache, random() % 2 == 0 ? 900 + random() % 100 : random() % 900, kRow);
    return static_cast<double>(hits) / n;
  };
  for (std::uint64_t row = 0; row < 900; ++row) draw(cache, row, kRow);  // the others come first
  drawn(20'000);
  CHECK(cache.stats().displaced > 50);
  CHECK(drawn(5'000) > 0.5);  // what came first alone would give 0.15
}

TEST(a_smaller_budget_gives_memory_back_and_keeps_what_is_right) {
  constexpr std::size_t kRow = 100'000;
  RowCache cache(40 * kMiB);
  for (std::uint64_t row = 0; row < 380; ++row) draw(cache, row, kRow);
  const auto before = cache.stats();
  CHECK(before.bytes > 30 * kMiB);
  cache.set_budget(10 * kMiB);
  const auto after = cache.stats();
  CHECK(after.bytes <= 10 * kMiB);
  CHECK(after.entries < before.entries);
  CHECK(after.entries > 50);
  std::size_t held = 0;
  for (std::uint64_t row = 0; row < 380; ++row) held += holds(cache, {1, row * kRow}, pattern_bytes(kRow, row));
  CHECK_EQ(held, after.entries);
  cache.set_budget(0);
  CHECK_EQ(cache.stats().entries, 0u);
}

TEST(what_caches_may_still_take_is_known_as_long_as_they_live_unless_they_shrink) {
  const std::size_t before = RowCache::unfilled();
  {
    RowCache cache(8 * kMiB);
    const RowCache other(4 * kMiB, true);
    CHECK_EQ(RowCache::unfilled() - before, 8 * kMiB - cache.stats().bytes);
    for (std::uint64_t row = 0; row < 100; ++row) draw(cache, row, 100'000);
    CHECK(cache.stats().bytes > 6 * kMiB);
    CHECK_EQ(RowCache::unfilled() - before, 8 * kMiB - cache.stats().bytes);
    cache.set_budget(2 * kMiB);
    CHECK_EQ(RowCache::unfilled() - before, 2 * kMiB - cache.stats().bytes);
  }
  CHECK_EQ(RowCache::unfilled(), before);
}

TEST(runs_of_any_size_stay_within_the_budget) {
  RowCache cache(4 * kMiB);
  std::mt19937 random(3);
  for (std::uint64_t row = 0; row < 4000; ++row) {
    const std::size_t n = 1 + random() % 9000;
    const Bytes bytes = pattern_bytes(n, row);
    cache.offer({1, row}, bytes);
    CHECK(holds(cache, {1, row}, bytes) || cache.stats().bytes > 3 * kMiB);
  }
  CHECK(cache.stats().bytes <= 4 * kMiB);
  CHECK(!cache.find({1, 4001}, 1, [](const std::byte*) {}));
  cache.offer({1, 5000}, Bytes(RowCache::kLargestRun + 1));
  CHECK(!cache.find({1, 5000}, 1, [](const std::byte*) {}));
  CHECK_THROWS(std::invalid_argument, std::make_unique<RowCache>(1000));
}

TEST(many_threads_draw_while_the_budget_changes) {
  constexpr std::size_t kRow = 5000;
  RowCache cache(6 * kMiB);
  std::atomic<bool> stop{false};
  {
    std::vector<std::jthread> team;
    for (unsigned thread = 0; thread < 4; ++thread) {
      team.emplace_back([&cache, &stop, thread] {
        std::mt19937 random(thread);
        while (!stop) draw(cache, random() % (random() % 4 == 0 ? 2000 : 300), kRow);
      });
    }
    for (int round = 0; round < 30; ++round) {
      std::this_thread::sleep_for(3ms);
      cache.set_budget((1 + static_cast<std::size_t>(round) % 6) * kMiB);
      static_cast<void>(cache.stats());
    }
    stop = true;
  }
  CHECK(cache.stats().bytes <= 6 * kMiB);
}

TEST(a_forked_child_finds_nothing_and_takes_nothing_in) {
  RowCache cache(kMiB);
  draw(cache, 1, 1000);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool held = draw(cache, 1, 1000) || draw(cache, 2, 1000) || draw(cache, 2, 1000);
    cache.set_budget(0);
    ::_exit(held ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(holds(cache, {1, 1000}, pattern_bytes(1000, 1)));
}

// All rows of a column in random order through a pipeline, compared with the file's bytes.
PipelineStats read_all(const std::shared_ptr<const Column>& column, const Bytes& bytes, std::size_t row_bytes,
                       unsigned seed, std::size_t batch_rows = 16) {
  PipelineOptions options;
  options.batch_rows = options.slot_rows = batch_rows;
  options.threads = 2;
  Pipeline pipeline({{column, std::nullopt}}, options);
  const std::vector<std::int64_t> rows = shuffled(column->rows(), seed);
  pipeline.extend({nullptr, rows});
  pipeline.finish();
  Batch batch;
  std::size_t at = 0;
  while (pipeline.next(batch, 20'000ms) == Step::batch) {
    for (std::size_t i = 0; i < batch.row_numbers.size(); ++i, ++at) {
      const std::byte* const row = batch.slot.get() + i * row_bytes;
      CHECK(same(row, bytes.data() + static_cast<std::size_t>(rows[at]) * row_bytes, row_bytes));
    }
  }
  CHECK_EQ(at, rows.size());
  return pipeline.stats();
}

void check_rows_of(std::size_t row_bytes, std::size_t n) {
  const Bytes bytes = pattern_bytes(row_bytes * n);
  const ScratchFile file(bytes);
  const auto direct = Storage::map_file(file.path(), past_cache());
  const PipelineStats stats = read_all(dense(direct, row_bytes), bytes, row_bytes, 1);
  CHECK(stats.direct_bytes == bytes.size() || !direct->reads_directly());
  CHECK_EQ(stats.cached_bytes, 0u);
  const auto cache = std::make_shared<RowCache>(std::max<std::size_t>(kMiB, bytes.size() / 2));
  const auto hybrid = Storage::map_file(file.path(), past_cache(cache));
  if (!hybrid->reads_directly() || stats.direct_bytes == 0) return;
  read_all(dense(hybrid, row_bytes), bytes, row_bytes, 2);
  const PipelineStats second = read_all(dense(hybrid, row_bytes), bytes, row_bytes, 3);
  CHECK(second.cached_bytes > 0);
  CHECK_EQ(second.cached_bytes + second.direct_bytes, bytes.size());
}

TEST(small_rows_past_the_page_cache_are_the_files_bytes) { check_rows_of(4096, 600); }
TEST(tiny_odd_rows_past_the_page_cache_are_the_files_bytes) { check_rows_of(37, 5000); }
TEST(large_rows_past_the_page_cache_are_the_files_bytes) { check_rows_of(100'003, 60); }
TEST(rows_larger_than_one_read_are_the_files_bytes) { check_rows_of(3'300'001, 7); }

TEST(a_cast_reads_past_the_page_cache_as_well) {
  const Bytes bytes = pattern_bytes(3000 * 20);
  const ScratchFile file(bytes);
  const auto cache = std::make_shared<RowCache>(kMiB);
  const CastRule rule{DType::u8, DType::f32, true};
  const std::vector<std::int64_t> rows = shuffled(20, 4);
  const auto cast = [&](const std::shared_ptr<const Storage>& storage) {
    Bytes out(bytes.size() * 4);
    gather_rows({dense(storage, 3000), rule}, rows, out);
    return out;
  };
  const Bytes expected = cast(Storage::map_file(file.path()));
  const auto hybrid = Storage::map_file(file.path(), past_cache(cache));
  CHECK(cast(hybrid) == expected);
  CHECK(cast(hybrid) == expected);  // out of the cache, if the file system reads past the page cache
}

TEST(a_file_cut_short_is_reported_past_the_page_cache_as_well) {
  constexpr std::size_t kRow = 8192;
  const ScratchFile file(pattern_bytes(kRow * 64));
  const auto column = dense(Storage::map_file(file.path(), past_cache()), kRow);
  file.truncate(kRow * 10);
  PipelineOptions options;
  options.batch_rows = options.slot_rows = 32;
  options.threads = 2;
  Pipeline pipeline({{column, std::nullopt}}, options);
  const std::vector<std::int64_t> rows = shuffled(64, 1);
  pipeline.extend({nullptr, rows});
  pipeline.finish();
  Batch batch;
  CHECK_THROWS(ReadError, pipeline.next(batch, 20'000ms));
}

TEST(members_of_different_tiers_are_one_column) {
  constexpr std::size_t kRow = 4096;
  const Bytes bytes = pattern_bytes(kRow * 200);
  const ScratchFile file(bytes);
  const auto column = std::make_shared<const Column>(
      kRow, std::vector<memload::Segment>{{Storage::map_file(file.path(), past_cache()), 0, 100, kRow},
                                          {Storage::map_file(file.path()), 100 * kRow, 100, kRow}});
  read_all(column, bytes, kRow, 5);
}

TEST(extents_are_whole_pages_of_what_rows_need_each_once) {
  const ScratchFile file(pattern_bytes(kPage * 10 + 100));
  const auto storage = Storage::map_file(file.path());
  const std::vector<std::int64_t> rows{9, 1, 1, 0};
  const auto column = std::make_shared<const Column>(
      Column(5000, std::vector<memload::Segment>{{storage, 0, 8, 5000}}).select(std::vector<std::int64_t>{7, 1, 1, 0}));
  const auto extents = memload::stored_extents(column);
  CHECK_EQ(extents.size(), 2u);
  CHECK_EQ(extents[0].offset, 0u);
  CHECK_EQ(extents[0].bytes, 3 * kPage);
  CHECK_EQ(extents[1].offset, 8 * kPage);
  CHECK_EQ(extents[1].bytes, 2 * kPage);
  Bytes loaded(2 * kPage);
  storage->load(8 * kPage, loaded);
  CHECK(same(loaded.data(), storage->data() + 8 * kPage, loaded.size()));
}

}  // namespace

int main() { return memload::test::run(); }
