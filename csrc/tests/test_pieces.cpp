// Batches are cut without a gap, in pieces that threads can share, and so that a read stays whole where it has to.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "core/base/memory.h"
#include "core/gather/gather.h"
#include "core/gather/pieces.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::BatchLayout;
using memload::FieldSpec;
using memload::Gather;
using memload::Isa;
using memload::Pieces;
using memload::Storage;
using memload::Store;
using memload::test::dense;
using memload::test::in_memory;
using memload::test::pattern_bytes;
using memload::test::ScratchFile;

using Indices = std::vector<std::int64_t>;

constexpr std::size_t kMega = std::size_t{1} << 20;

Gather gather_of(const std::shared_ptr<const Storage>& storage, std::size_t row_bytes) {
  return Gather({{dense(storage, row_bytes), {}}}, Isa::scalar, Store::cached);
}

Indices all_rows(const Gather& gather) {
  Indices rows(static_cast<std::size_t>(gather.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

void check_edges(const Gather& gather, const BatchLayout& layout, const Pieces& pieces) {
  CHECK_EQ(pieces.edge(gather, layout, 0), std::size_t{0});
  CHECK_EQ(pieces.edge(gather, layout, pieces.count()), layout.work);
  for (std::size_t i = 0; i < pieces.count(); ++i) {
    CHECK(pieces.edge(gather, layout, i) <= pieces.edge(gather, layout, i + 1));
  }
}

TEST(a_batch_is_cut_without_a_gap_for_any_number_of_threads) {
  const Gather gather = gather_of(in_memory(pattern_bytes(9 * kMega)), 3001);
  const Indices rows = all_rows(gather);
  const BatchLayout layout = gather.layout(rows);
  for (const int threads : {1, 2, 5, 64}) {
    for (const bool planned : {false, true}) {
      check_edges(gather, layout, Pieces(gather, layout, threads, planned));
    }
  }
}

TEST(pieces_are_of_a_quarter_to_one_megabyte) {
  const Gather gather = gather_of(in_memory(pattern_bytes(8 * kMega)), 1024);
  const Indices rows = all_rows(gather);
  const BatchLayout layout = gather.layout(rows);
  CHECK_EQ(Pieces(gather, layout, 1, false).count(), std::size_t{8});    // of a megabyte: four would be larger
  CHECK_EQ(Pieces(gather, layout, 4, false).count(), std::size_t{16});   // four for each thread
  CHECK_EQ(Pieces(gather, layout, 64, false).count(), std::size_t{32});  // of a quarter
}

TEST(each_piece_is_gathered_once_and_those_of_one_huge_page_not_at_the_same_time) {
  const Gather gather = gather_of(in_memory(pattern_bytes(37 * kMega)), 1024);
  const Indices rows = all_rows(gather);
  const BatchLayout layout = gather.layout(rows);
  for (const std::size_t threads : {1, 2, 3, 16}) {
    const Pieces pieces(gather, layout, static_cast<int>(threads), /*planned=*/false);
    std::vector<std::size_t> order(pieces.count());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = pieces.in_turn(i);
    const auto page = [&](std::size_t i) { return pieces.edge(gather, layout, order[i]) / memload::kHugePage; };
    for (std::size_t i = 0; i + 1 < threads && i + 1 < order.size(); ++i) CHECK(page(i) != page(i + 1));
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) CHECK_EQ(order[i], i);
  }
}

TEST(a_batch_of_nothing_is_one_piece) {
  const Gather gather = gather_of(in_memory(pattern_bytes(100)), 10);
  const Indices none;
  const BatchLayout layout = gather.layout(none);
  const Pieces pieces(gather, layout, 2, false);
  CHECK_EQ(pieces.count(), std::size_t{1});
  CHECK_EQ(pieces.edge(gather, layout, 1), std::size_t{0});
  CHECK_EQ(Pieces().count(), std::size_t{1});
}

TEST(large_rows_that_are_read_directly_stay_whole) {
  const std::size_t row = 300'032;  // a multiple of 64
  const ScratchFile file(pattern_bytes(16 * row));
  const Gather gather = gather_of(Storage::map_file(file.path()), row);
  const Indices rows = all_rows(gather);
  const BatchLayout layout = gather.layout(rows);
  const Pieces pieces(gather, layout, 8, /*planned=*/true);
  check_edges(gather, layout, pieces);
  CHECK(pieces.count() > 1);
  for (std::size_t i = 0; i < pieces.count(); ++i) CHECK_EQ(pieces.edge(gather, layout, i) % row, std::size_t{0});
}

}  // namespace

int main() { return memload::test::run(); }
