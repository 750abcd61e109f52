// Row -> extent, and rows -> batch, against the plainest reference: one row after the other.
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/columns/row_index.h"
#include "core/gather/gather.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::BatchLayout;
using memload::Column;
using memload::Gather;
using memload::Isa;
using memload::RowIndex;
using memload::Segment;
using memload::Storage;
using memload::Store;
using memload::test::dense;
using memload::test::in_memory;
using memload::test::pattern_bytes;
using memload::test::same;
using memload::test::ScratchFile;
using memload::test::shuffled;

std::vector<std::byte> row_by_row(const Column& column, const std::vector<std::int64_t>& rows) {
  std::vector<std::byte> out;
  for (const std::int64_t row : rows) {
    const std::byte* const data = column.at(row).data;
    out.insert(out.end(), data, data + column.row_bytes());
  }
  return out;
}

// What is thrown, in words; empty if nothing is.
template <class Error, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Five rows in memory, 3 bytes apart; seven in a file, without gaps after a header; four in memory, back to back.
Column three_segments(const ScratchFile& file) {
  return Column(2, {{in_memory(pattern_bytes(14, 1)), 0, 5, 3},
                    {Storage::map_file(file.path()), 6, 7, 2},
                    {in_memory(pattern_bytes(8, 2)), 0, 4, 2}});
}

TEST(a_segment_may_reach_to_the_last_byte_and_not_beyond) {
  const auto storage = in_memory(std::vector<std::byte>(100));
  CHECK_EQ(Column(10, {{storage, 0, 10, 10}}).rows(), 10);
  CHECK_EQ(Column(10, {{storage, 60, 3, 15}}).rows(), 3);
  CHECK_THROWS(std::invalid_argument, Column(10, {{storage, 0, 11, 10}}));
  CHECK_THROWS(std::invalid_argument, Column(10, {{storage, 61, 3, 15}}));
  CHECK_THROWS(std::invalid_argument, Column(10, {{storage, 91, 1, 10}}));
  CHECK_THROWS(std::invalid_argument, Column(10, {{storage, 101, 1, 10}}));
  CHECK_THROWS(std::invalid_argument, Column(101, {{storage, 0, 1, 101}}));
}

TEST(sizes_that_wrap_around_are_refused) {
  const auto storage = in_memory(std::vector<std::byte>(100));
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  constexpr std::int64_t kRows = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS(std::invalid_argument, Column(10, {{storage, kMost - 4, 1, 10}}));
  CHECK_THROWS(std::invalid_argument, Column(kMost, {{storage, 50, 1, 1}}));
  CHECK_THROWS(std::invalid_argument, Column(10, {{storage, 0, 3, kMost / 2 + 1}}));
  CHECK_THROWS(std::invalid_argument, Column(1, {{storage, 0, kRows, 2}}));
  CHECK_THROWS(std::invalid_argument, Column(10, {{storage, 0, -1, 10}}));
}

Column join(const std::vector<Column>& columns) {
  std::vector<std::shared_ptr<const Column>> members;
  for (const Column& column : columns) members.push_back(std::make_shared<const Column>(column));
  return Column::concat(members);
}

TEST(rows_that_64_bits_cannot_count_are_refused) {
  const auto storage = in_memory(std::vector<std::byte>(1));
  constexpr std::int64_t kRows = std::numeric_limits<std::int64_t>::max();
  const Column most(1, {{storage, 0, kRows, 0}});
  const Column one(1, {{storage, 0, 1, 0}});
  CHECK_EQ(most.rows(), kRows);
  CHECK_THROWS(std::invalid_argument, Column(1, {{storage, 0, kRows, 0}, {storage, 0, 1, 0}}));
  CHECK_THROWS(std::invalid_argument, join({most, one}));
  const Column chosen = one.select(std::vector<std::int64_t>{0, 0});
  CHECK_THROWS(std::invalid_argument, join({chosen, most}));
}

TEST(a_row_lies_where_its_segment_says) {
  const ScratchFile file(pattern_bytes(20, 3));
  const Column column = three_segments(file);
  CHECK_EQ(column.rows(), 16);
  const auto& segments = column.segments();
  CHECK(column.at(4).data == segments[0].storage->data() + 12);
  CHECK(column.at(5).data == segments[1].storage->data() + 6);
  CHECK(column.at(11).data == segments[1].storage->data() + 18);
  CHECK_EQ(column.at(11).row_in_segment, 6);
  CHECK(column.at(12).data == segments[2].storage->data());
  CHECK(column.at(12).segment == &segments[2]);
}

TEST(segments_without_rows_take_no_part) {
  const auto storage = in_memory(std::vector<std::byte>(8));
  const Column column(4, {{storage, 0, 0, 4}, {storage, 0, 1, 4}, {storage, 8, 0, 4}, {storage, 4, 1, 4}});
  CHECK_EQ(column.rows(), 2);
  CHECK_EQ(column.segments().size(), 2u);
  CHECK(column.at(1).data == storage->data() + 4);
}

TEST(a_selection_of_a_selection_is_a_selection) {
  const ScratchFile file(pattern_bytes(20, 3));
  const Column column = three_segments(file);
  const Column once = column.select(std::vector<std::int64_t>{15, 4, 5, 4, 0});
  const Column twice = once.select(std::vector<std::int64_t>{1, 1, 0, 4});
  CHECK_EQ(twice.rows(), 4);
  CHECK(row_by_row(twice, {0, 1, 2, 3}) == row_by_row(column, {4, 4, 15, 0}));
}

TEST(a_selection_names_the_first_bad_row_and_its_position) {
  const auto column = dense(in_memory(std::vector<std::byte>(40)), 4);
  const auto select = [&](std::vector<std::int64_t> rows) {
    return message_of<std::out_of_range>([&] { static_cast<void>(column->select(rows)); });
  };
  CHECK(select({0, 9}).empty());
  const std::string beyond = select({0, 10, -1});
  CHECK(beyond.find("row 10 at position 1") != std::string::npos);
  CHECK(select({3, 2, -1}).find("row -1 at position 2") != std::string::npos);
}

TEST(columns_one_after_the_other_are_a_column) {
  const ScratchFile file(pattern_bytes(20, 3));
  const Column column = three_segments(file);
  const Column chosen = column.select(std::vector<std::int64_t>{14, 1, 6});
  const Column joined = join({chosen, column, chosen});
  CHECK_EQ(joined.rows(), 22);
  std::vector<std::int64_t> all(22);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> expected = {14, 1, 6};
  for (std::int64_t row = 0; row < 16; ++row) expected.push_back(row);
  expected.insert(expected.end(), {14, 1, 6});
  CHECK(row_by_row(joined, all) == row_by_row(column, expected));
}

TEST(columns_of_different_row_sizes_do_not_join) {
  const auto four = dense(in_memory(std::vector<std::byte>(40)), 4);
  const auto five = dense(in_memory(std::vector<std::byte>(40)), 5);
  CHECK_THROWS(std::invalid_argument, join({*four, *five}));
  CHECK_THROWS(std::invalid_argument, join({}));
}

// Fills a batch in pieces of `piece` bytes, backwards, and looks at every byte of every field.
void check_batch(const Gather& gather, const std::vector<const Column*>& columns, const std::vector<std::int64_t>& rows,
                 std::size_t piece) {
  const BatchLayout layout = gather.layout(rows);
  std::vector<std::byte> slot(layout.bytes, std::byte{0xEE});
  for (std::size_t begin = layout.bytes / piece * piece;; begin -= piece) {
    static_cast<void>(gather.fill(layout, slot.data(), begin, std::min(begin + piece, layout.bytes)));
    if (begin == 0) break;
  }
  for (std::size_t f = 0; f < columns.size(); ++f) {
    const std::vector<std::byte> expected = row_by_row(*columns[f], rows);
    CHECK(same(slot.data() + layout.shares[f].offset, expected.data(), expected.size()));
  }
}

TEST(a_batch_is_the_same_however_it_is_cut_into_pieces) {
  constexpr std::int64_t kRows = 60;
  const ScratchFile file(pattern_bytes(static_cast<std::size_t>(kRows) * 37 + 11, 4));
  const auto mapped = Storage::map_file(file.path());
  const auto wide = std::make_shared<const Column>(37, std::vector<Segment>{{mapped, 11, kRows, 37}});
  const auto strided = std::make_shared<const Column>(
      5, std::vector<Segment>{{mapped, 1, 20, 37}, {in_memory(pattern_bytes(40 * 8, 5)), 0, 40, 8}});
  const auto mixed = std::make_shared<const Column>(dense(mapped, 1)->select(shuffled(kRows, 6)));
  const Gather gather({{wide, {}}, {strided, {}}, {mixed, {}}}, Isa::scalar, Store::cached);
  CHECK_EQ(gather.rows(), kRows);
  CHECK_EQ(gather.row_bytes(), 43u);
  CHECK(gather.files().mapped);
  for (const std::size_t piece : {64u, 128u, 320u, 65536u}) {
    check_batch(gather, {wide.get(), strided.get(), mixed.get()}, shuffled(kRows, 7), piece);
    check_batch(gather, {wide.get(), strided.get(), mixed.get()}, {59, 0, 59}, piece);
    check_batch(gather, {wide.get(), strided.get(), mixed.get()}, {}, piece);
  }
}

TEST(a_batch_of_rows_without_bytes_is_filled) {
  const auto empty = std::make_shared<const Column>(0, std::vector<Segment>{{in_memory({}), 0, 9, 0}});
  const auto bytes = dense(in_memory(pattern_bytes(9)), 1);
  const Gather gather({{empty, {}}, {bytes, {}}}, Isa::scalar, Store::cached);
  check_batch(gather, {empty.get(), bytes.get()}, {8, 3}, 64);
}

TEST(fields_begin_at_cache_lines) {
  const auto a = dense(in_memory(std::vector<std::byte>(70)), 7);
  const auto b = dense(in_memory(std::vector<std::byte>(650)), 65);
  const Gather gather({{a, {}}, {b, {}}}, Isa::scalar, Store::cached);
  const std::vector<std::int64_t> rows(9);
  const BatchLayout layout = gather.layout(rows);
  CHECK_EQ(layout.shares[0].offset, 0u);
  CHECK_EQ(layout.shares[1].offset, 64u);
  CHECK_EQ(layout.bytes, 64u + 640u);
  CHECK_EQ(gather.slot_bytes(9), layout.bytes);
}

TEST(fields_of_different_length_are_no_batch) {
  const auto ten = dense(in_memory(std::vector<std::byte>(40)), 4);
  const auto eight = dense(in_memory(std::vector<std::byte>(40)), 5);
  const std::string message = message_of<std::invalid_argument>(
      [&] { static_cast<void>(Gather({{ten, {}}, {eight, {}}}, Isa::scalar, Store::cached)); });
  CHECK(message.find("10") != std::string::npos);
  CHECK(message.find("8 rows") != std::string::npos);
  CHECK_THROWS(std::invalid_argument, Gather({}, Isa::scalar, Store::cached));
}

TEST(a_cast_needs_whole_elements) {
  const auto five = dense(in_memory(std::vector<std::byte>(40)), 5);
  const memload::CastRule halves{memload::DType::i16, memload::DType::f32};
  CHECK_THROWS(std::invalid_argument, Gather({{five, halves}}, Isa::scalar, Store::cached));
}

TEST(a_cast_writes_rows_of_another_size) {
  const auto bytes = dense(in_memory(pattern_bytes(50 * 21, 8)), 21);
  const memload::CastRule widen{memload::DType::u8, memload::DType::f32};
  const Gather gather({{bytes, widen}}, Isa::scalar, Store::cached);
  CHECK_EQ(gather.slot_bytes(1), 128u);  // 84, padded
  const std::vector<std::int64_t> rows = shuffled(50, 9);
  const BatchLayout layout = gather.layout(rows);
  std::vector<float> out(layout.bytes / sizeof(float));
  auto* const slot = reinterpret_cast<std::byte*>(out.data());
  for (std::size_t begin = 0; begin < layout.bytes; begin += 64) {
    static_cast<void>(gather.fill(layout, slot, begin, begin + 64));
  }
  const std::vector<std::byte> expected = row_by_row(*bytes, rows);
  bool equal = true;
  for (std::size_t i = 0; i < expected.size(); ++i) equal = equal && out[i] == static_cast<float>(expected[i]);
  CHECK(equal);
}

TEST(rows_from_a_number_on_are_moved_and_counted_in_the_order_of_the_batch) {
  using Numbers = std::vector<std::int64_t>;
  const auto stored = std::make_shared<const Numbers>(Numbers{3, 9, 1, 7, 5});
  const RowIndex index(stored, *stored);
  const auto cut = index.cut(Numbers{0, 1, 2, 3, 1}, 5);
  CHECK(cut.numbers == Numbers({3, 5, 1, 6, 7}));
  CHECK(cut.moved == Numbers({4, 2, 4}));
  CHECK(index.numbers(Numbers{4, 4, 2}) == Numbers({5, 5, 1}));
  const auto none = RowIndex(4).cut(Numbers{3, 0}, 4);
  CHECK(none.numbers == Numbers({3, 0}));
  CHECK(none.moved.empty());
  CHECK(RowIndex(4).cut(Numbers{}, 0).numbers.empty());
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{5}, std::numeric_limits<std::int64_t>::max()}) {
    CHECK_EQ(message_of<std::out_of_range>([&] { static_cast<void>(index.cut(Numbers{0, bad}, 5)); }),
             "row " + std::to_string(bad) + " is not one of the 5 rows");
  }
}

}  // namespace

int main() { return memload::test::run(); }
