// Rows of different length, against the plainest reference: one row after the other.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/gather/gather.h"
#include "core/pass/pipeline.h"
#include "core/readers/ragged_reader.h"
#include "tests/check.h"
#include "tests/fixtures.h"

namespace {

using memload::BatchLayout;
using memload::CastRule;
using memload::DType;
using memload::Filled;
using memload::Gather;
using memload::Isa;
using memload::Ragged;
using memload::RaggedForm;
using memload::RaggedReader;
using memload::RaggedSegment;
using memload::ReadError;
using memload::Run;
using memload::Storage;
using memload::Store;
using memload::test::in_memory;
using memload::test::pattern_bytes;
using memload::test::same;
using memload::test::ScratchFile;
using memload::test::shuffled;

std::vector<std::byte> bytes_of(const std::vector<std::int64_t>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(std::int64_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<std::int64_t> numbers_at(const std::byte* at, std::size_t n) {
  std::vector<std::int64_t> numbers(n);
  if (n != 0) std::memcpy(numbers.data(), at, n * sizeof(std::int64_t));
  return numbers;
}

// Offsets of rows of these lengths, from `first` on.
std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths, std::int64_t first = 0) {
  std::vector<std::int64_t> offsets{first};
  for (const std::int64_t n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}

// Planes of just these items, one behind the other.
RaggedSegment segment(const std::vector<std::int64_t>& offsets, std::size_t item_bytes, std::size_t planes = 1,
                      std::size_t salt = 0) {
  const auto items = static_cast<std::size_t>(offsets.back());
  return {in_memory(bytes_of(offsets), "offsets"),
          0,
          in_memory(pattern_bytes(items * item_bytes * planes, salt), "values"),
          0,
          static_cast<std::int64_t>(offsets.size()) - 1,
          offsets.back(),
          items * item_bytes};
}

std::vector<std::int64_t> random_lengths(std::size_t rows, std::int64_t most, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> lengths(rows);
  for (std::int64_t& n : lengths)
    n = random() % 4 == 0 ? 0 : std::uniform_int_distribution<std::int64_t>(0, most)(random);
  return lengths;
}

std::vector<std::byte> row_by_row(const Ragged& ragged, const std::vector<std::int64_t>& rows) {
  std::vector<std::byte> out;
  for (std::size_t plane = 0; plane < ragged.planes(); ++plane) {
    for (const std::int64_t row : rows) {
      const Run run = ragged.look(row);
      const std::byte* const data = run.data + plane * run.segment->plane_stride;
      out.insert(out.end(), data, data + static_cast<std::size_t>(run.items) * ragged.item_bytes());
    }
  }
  return out;
}

// What a gather puts into a slot, made in pieces of 64 bytes, the last first.
std::vector<std::byte> gathered(const std::shared_ptr<const Ragged>& ragged, const std::vector<std::int64_t>& rows,
                                const std::optional<CastRule>& cast = std::nullopt) {
  const Gather gather({{ragged, cast}}, Isa::scalar, Store::cached);
  const BatchLayout layout = gather.layout(rows);
  CHECK(layout.bytes <= gather.slot_bytes(rows.size()) || rows.size() > static_cast<std::size_t>(ragged->rows()));
  std::vector<std::byte> slot(layout.bytes + 64);
  for (std::size_t at = (layout.work + 63) / 64 * 64; at != 0;) {
    const std::size_t end = std::min(at, layout.work);
    at -= 64;
    gather.fill(layout, slot.data(), at, end);
  }
  for (std::size_t i = layout.bytes; i < slot.size(); ++i) CHECK(slot[i] == std::byte{0});
  return slot;
}

void check_batch(const std::shared_ptr<const Ragged>& ragged, const std::vector<std::int64_t>& rows) {
  const std::vector<std::byte> want = row_by_row(*ragged, rows);
  const std::vector<std::byte> slot = gathered(ragged, rows);
  CHECK(same(slot.data(), want.data(), want.size()));
  std::vector<std::int64_t> lengths(rows.size());
  ragged->lengths(rows, lengths);
  CHECK(numbers_at(slot.data() + memload::round_up(want.size(), 64), rows.size() + 1) == offsets_of(lengths));
}

template <class Error, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(a_batch_is_the_rows_one_after_the_other_and_their_offsets) {
  for (const std::size_t item_bytes : {1, 3, 8, 12}) {
    for (const std::size_t planes : {1, 2, 3}) {
      const auto one = std::make_shared<const Ragged>(
          item_bytes, planes, std::vector{segment(offsets_of(random_lengths(40, 90, 1)), item_bytes, planes)});
      check_batch(one, shuffled(40, 2));
      check_batch(one, {});
      check_batch(one, {7});
      check_batch(one, {3, 3, 3, 0, 39, 3});
    }
  }
}

TEST(several_segments_selections_and_joins_are_one_run_of_rows) {
  const std::vector<std::int64_t> offsets = offsets_of(random_lengths(30, 50, 3), 5);  // the first items are nobody's
  const Ragged several(
      4, 2, {segment(offsets, 4, 2, 1), segment(offsets_of({}), 4, 2), segment(offsets_of({9, 0, 4}), 4, 2, 2)});
  CHECK_EQ(several.rows(), 33);
  const auto chosen = std::make_shared<const Ragged>(several.select(shuffled(33, 5)).select(shuffled(33, 6)));
  check_batch(chosen, shuffled(33, 7));
  CHECK_EQ(chosen->items(), several.items());
  const auto whole = std::make_shared<const Ragged>(several);
  const std::vector<std::shared_ptr<const Ragged>> members{chosen, whole,
                                                           std::make_shared<const Ragged>(several.select({}))};
  const auto joined = std::make_shared<const Ragged>(Ragged::concat(members));
  CHECK_EQ(joined->rows(), 66);
  CHECK_EQ(joined->items(), 2 * several.items());
  check_batch(joined, shuffled(66, 8));
  CHECK(row_by_row(*joined, {0, 33}) == row_by_row(Ragged::concat(std::vector{chosen, whole}), {0, 33}));
}

TEST(columns_that_differ_are_not_joined) {
  const auto ints = std::make_shared<const Ragged>(4, 1, std::vector{segment(offsets_of({1, 2}), 4)});
  const auto longs = std::make_shared<const Ragged>(8, 1, std::vector{segment(offsets_of({1, 2}), 8)});
  const auto planes = std::make_shared<const Ragged>(4, 2, std::vector{segment(offsets_of({1, 2}), 4, 2)});
  CHECK_THROWS(std::invalid_argument, Ragged::concat(std::vector{ints, longs}));
  CHECK_THROWS(std::invalid_argument, Ragged::concat(std::vector{ints, planes}));
  CHECK_THROWS(std::invalid_argument, Ragged::concat({}));
  CHECK_THROWS(std::out_of_range, ints->select(std::vector<std::int64_t>{0, 2}));
}

TEST(offsets_that_are_not_as_they_should_be_are_refused_and_named) {
  const auto refused = [](std::vector<std::int64_t> offsets, std::int64_t items) {
    const auto rows = static_cast<std::int64_t>(offsets.size()) - 1;
    return message_of<std::invalid_argument>([&] {
      static_cast<void>(
          Ragged(1, 1, {{in_memory(bytes_of(offsets), "o"), 0, in_memory(pattern_bytes(10)), 0, rows, items}}));
    });
  };
  CHECK_EQ(refused({0, 4, 10}, 10), "");
  CHECK_EQ(refused({3, 3, 3}, 10), "");
  CHECK(refused({0, 5, 4, 10}, 10).starts_with("o: offset 2 is 4, which is less than the one before, 5;"));
  CHECK(refused({-1, 5}, 10).starts_with("o: offset 0 is -1, which is negative;"));
  CHECK(refused({0, 11}, 10).starts_with("o: offset 1 is 11, which lies beyond the 10 items;"));
  CHECK(
      refused({0, std::numeric_limits<std::int64_t>::max(), 10}, 10).starts_with("o: offset 1 is 9223372036854775807"));
}

TEST(segments_that_reach_outside_their_storages_are_refused) {
  const auto offsets = in_memory(bytes_of({0, 1, 2}));
  const auto values = in_memory(pattern_bytes(20));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  CHECK_EQ(Ragged(10, 1, {{offsets, 0, values, 0, 2, 2}}).rows(), 2);
  CHECK_EQ(Ragged(5, 2, {{offsets, 0, values, 0, 2, 2, 10}}).items(), 2);
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 0, values, 0, 3, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 8, values, 0, 2, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 0, values, 1, 2, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 0, values, 0, 2, 3}}));
  CHECK_THROWS(std::invalid_argument, Ragged(5, 2, {{offsets, 0, values, 0, 2, 2, 11}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 0, values, 0, -1, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 0, values, 0, 2, -1}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 0, values, 0, kMost, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, 0, values, 0, 2, kMost}}));
  CHECK_THROWS(std::invalid_argument, Ragged(kHuge, 1, {{offsets, 0, values, 0, 2, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(10, 1, {{offsets, kHuge, values, 0, 2, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(5, kHuge, {{offsets, 0, values, 0, 2, 2, 10}}));
  CHECK_THROWS(std::invalid_argument, Ragged(0, 1, {{offsets, 0, values, 0, 2, 2}}));
  CHECK_THROWS(std::invalid_argument, Ragged(5, 0, {{offsets, 0, values, 0, 2, 2, 10}}));
}

TEST(offsets_and_values_may_lie_at_any_address) {
  std::vector<std::byte> shifted(3);
  const std::vector<std::byte> offsets = bytes_of({0, 2, 7});
  shifted.insert(shifted.end(), offsets.begin(), offsets.end());
  const auto ragged = std::make_shared<const Ragged>(
      4, 1, std::vector<RaggedSegment>{{in_memory(shifted), 3, in_memory(pattern_bytes(31)), 3, 2, 7}});
  check_batch(ragged, {1, 0, 1});
}

TEST(the_longest_rows_are_found_whatever_their_order) {
  const std::vector<std::int64_t> lengths = random_lengths(9000, 1000, 9);
  const Ragged ragged(1, 1, {segment(offsets_of(lengths), 1)});
  std::vector<std::int64_t> sorted = lengths;
  std::sort(sorted.rbegin(), sorted.rend());
  std::int64_t sum = 0;
  std::size_t rows = 0;
  for (const std::size_t wanted : {0, 1, 2, 100, 8999, 9000, 9001}) {
    for (; rows < std::min<std::size_t>(wanted, sorted.size()); ++rows) sum += sorted[rows];
    CHECK_EQ(ragged.longest(wanted), sum);
    CHECK_EQ(ragged.select(shuffled(9000, 3)).longest(wanted), sum);
  }
}

TEST(rows_are_padded_with_zeros_to_the_longest_of_their_batch) {
  const Ragged plain(2, 1, {segment(offsets_of({3, 0, 40, 1}), 2)});
  const auto padded = std::make_shared<const Ragged>(plain.padded());
  const std::vector<std::int64_t> rows{0, 2, 1, 0};
  const std::vector<std::byte> slot = gathered(padded, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::byte> want = row_by_row(plain, {rows[i]});
    CHECK(same(slot.data() + i * 80, want.data(), want.size()));
    for (std::size_t k = want.size(); k < 80; ++k) CHECK(slot[i * 80 + k] == std::byte{0});
  }
  CHECK(numbers_at(slot.data() + 320, 4) == (std::vector<std::int64_t>{3, 40, 0, 3}));
  CHECK_EQ(Gather({{padded, std::nullopt}}, Isa::scalar, Store::cached).slot_bytes(2), std::size_t{256});
  CHECK_THROWS(std::invalid_argument, Ragged(2, 2, {segment(offsets_of({1}), 2, 2)}).padded());
}

TEST(what_pads_rows_is_the_same_wherever_pieces_are_cut) {
  for (const std::size_t size : {1, 2, 4, 8}) {
    std::vector<std::byte> pad(size);
    for (std::size_t i = 0; i < size; ++i) pad[i] = static_cast<std::byte>(0xF1 + i);
    const Ragged plain(8, 1, {segment(offsets_of({3, 0, 40, 1}), 8)});
    const auto padded = std::make_shared<const Ragged>(plain.padded(pad));
    const std::vector<std::int64_t> rows{1, 2, 0};
    std::vector<std::byte> want;
    for (const std::int64_t row : rows) {
      const std::vector<std::byte> items = row_by_row(plain, {row});
      want.insert(want.end(), items.begin(), items.end());
      for (std::size_t k = items.size(); k < 320; ++k) want.push_back(pad[k % size]);
    }
    const std::vector<std::byte> whole = gathered(padded, rows);
    CHECK(same(whole.data(), want.data(), want.size()));
    std::vector<std::byte> cut(whole.size());
    const RaggedReader reader(RaggedForm(padded, std::nullopt, Isa::scalar, Store::cached));
    const auto plan = reader.plan(rows, {});
    Filled found;
    for (std::size_t at = 0; at < want.size(); at += 37) {
      reader.fill(*plan, cut.data(), at, std::min(at + 37, want.size()), {}, found);
    }
    CHECK(same(cut.data(), want.data(), want.size()));
  }
  const std::vector<std::byte> three(3, std::byte{1});
  const auto odd = std::make_shared<const Ragged>(Ragged(8, 1, {segment(offsets_of({2}), 8)}).padded(three));
  CHECK_THROWS(std::invalid_argument, RaggedForm(odd, std::nullopt, Isa::scalar, Store::cached));
  CHECK_THROWS(std::invalid_argument, Ragged(8, 1, {segment(offsets_of({2}), 8)}).padded(std::vector<std::byte>(17)));
}

TEST(padding_is_zero_also_where_a_cast_would_make_something_else_of_it) {
  const auto padded = std::make_shared<const Ragged>(Ragged(1, 1, {segment(offsets_of({2, 30}), 1)}).padded());
  const std::vector<std::byte> slot = gathered(padded, {0, 1}, CastRule{DType::u8, DType::f32, true});
  for (std::size_t k = 8; k < 120; ++k) CHECK(slot[k] == std::byte{0});
  float first = 0;
  std::memcpy(&first, slot.data(), sizeof first);
  CHECK_EQ(first, (static_cast<float>(pattern_bytes(1)[0]) - 127.0F) / 255.0F);
}

TEST(items_are_increased_by_what_the_rows_before_have) {
  const std::vector<std::int64_t> edges{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15};  // two planes of six
  const auto counts = std::make_shared<const Ragged>(4, 1, std::vector{segment(offsets_of({100, 7, 20}), 4)});
  const Ragged plain(8, 2, {{in_memory(bytes_of({0, 2, 2, 6})), 0, in_memory(bytes_of(edges)), 0, 3, 6, 48}});
  const auto counted = std::make_shared<const Ragged>(plain.counted_by(counts));
  const std::vector<std::int64_t> want{2,  3,  4,  5,  20, 21, 129, 130, 131, 132,
                                       12, 13, 14, 15, 30, 31, 139, 140, 141, 142};
  CHECK(
      numbers_at(gathered(counted, {2, 0, 1, 2}).data(), want.size()) ==
      (std::vector<std::int64_t>{2, 3, 4, 5, 20, 21, 129, 130, 131, 132, 12, 13, 14, 15, 30, 31, 139, 140, 141, 142}));
  const auto reversed = std::make_shared<const Ragged>(counted->select(std::vector<std::int64_t>{2, 1, 0}));
  CHECK(numbers_at(gathered(reversed, {0, 2, 1, 0}).data(), want.size()) == want);
  const auto joined = std::make_shared<const Ragged>(Ragged::concat(std::vector{reversed, counted}));
  CHECK(numbers_at(gathered(joined, {5, 3, 4, 0}).data(), want.size()) == want);
  CHECK_THROWS(std::invalid_argument,
               plain.counted_by(std::make_shared<const Ragged>(counts->select(std::vector<std::int64_t>{0}))));
  CHECK_THROWS(std::invalid_argument, counts->padded().counted_by(counts));
  CHECK_THROWS(std::invalid_argument, Ragged(2, 1, {segment(offsets_of({1, 1, 1}), 2)}).counted_by(counts));
  CHECK_THROWS(std::invalid_argument,
               Gather({{counted, CastRule{DType::i64, DType::f32}}}, Isa::scalar, Store::cached));
}

TEST(a_file_that_is_cut_short_is_an_error_that_names_it) {
  const std::vector<std::int64_t> offsets = offsets_of(std::vector<std::int64_t>(4000, 4));
  const ScratchFile values(pattern_bytes(16000 * 4));
  const ScratchFile numbers(bytes_of(offsets));
  const auto ragged =
      std::make_shared<const Ragged>(4, 1,
                                     std::vector<RaggedSegment>{{Storage::map_file(numbers.path()), 0,
                                                                 Storage::map_file(values.path()), 0, 4000, 16000}});
  check_batch(ragged, shuffled(4000, 1));
  values.truncate(4096);
  CHECK(message_of<ReadError>([&] { gathered(ragged, {3999}); }).find(values.path()) != std::string::npos);
  gathered(ragged, {0});
  numbers.truncate(4096);
  CHECK(message_of<ReadError>([&] { gathered(ragged, {3999}); }).find(numbers.path()) != std::string::npos);
  CHECK_THROWS(ReadError, ragged->longest(3));
  const RaggedReader reader(RaggedForm(ragged, std::nullopt, Isa::scalar, Store::cached));
  int visited = 0;
  reader.visit(std::vector<std::int64_t>{3999, 0}, [&](const Storage&, const std::byte*, std::size_t) { ++visited; });
  CHECK_EQ(visited, 1);
}

TEST(offsets_that_are_written_to_after_they_were_checked_are_an_error_not_a_crash) {
  std::vector<std::int64_t> offsets{0, 3, 6};
  const auto storage = Storage::borrow(reinterpret_cast<const std::byte*>(offsets.data()), 24, "offsets", nullptr);
  const auto ragged = std::make_shared<const Ragged>(
      4, 1, std::vector<RaggedSegment>{{storage, 0, in_memory(pattern_bytes(24)), 0, 2, 6}});
  for (const std::int64_t bad : {std::int64_t{-5}, std::int64_t{7}, std::numeric_limits<std::int64_t>::min()}) {
    offsets[1] = bad;
    CHECK(message_of<ReadError>([&] { gathered(ragged, {0, 1}); }).find("somebody has written to it") !=
          std::string::npos);
  }
  offsets[1] = 3;
  check_batch(ragged, {0, 1});
}

TEST(a_pass_gives_batches_in_order_and_larger_ones_than_were_expected) {
  const std::vector<std::int64_t> lengths = random_lengths(500, 3000, 4);
  const auto ragged = std::make_shared<const Ragged>(4, 1, std::vector{segment(offsets_of(lengths), 4)});
  memload::PipelineOptions options;
  options.batch_rows = options.slot_rows = 20;
  options.threads = 4;
  memload::Pipeline pipeline({{ragged, std::nullopt}}, options);
  std::vector<std::vector<std::int64_t>> planned;
  const auto longest = std::max_element(lengths.begin(), lengths.end()) - lengths.begin();
  for (unsigned k = 0; k < 30; ++k) {
    std::vector<std::int64_t> rows = shuffled(500, k);
    rows.resize(20);
    if (k % 3 == 1) rows.assign(20, longest);  // more bytes than any 20 rows have that differ
    planned.push_back(rows);
    const auto copy = std::make_shared<const std::vector<std::int64_t>>(rows);
    pipeline.push({copy, *copy});
  }
  pipeline.finish();
  memload::Batch batch;
  for (const std::vector<std::int64_t>& rows : planned) {
    while (pipeline.next(batch, std::chrono::milliseconds(100)) == memload::Step::waiting) {
    }
    const std::vector<std::byte> want = row_by_row(*ragged, rows);
    CHECK_EQ(batch.outputs[0].rows, static_cast<std::int64_t>(want.size() / 4));
    CHECK_EQ(batch.outputs[1].rows, 21);
    CHECK(same(batch.slot.get() + batch.outputs[0].offset, want.data(), want.size()));
    std::vector<std::int64_t> items(20);
    ragged->lengths(rows, items);
    CHECK(numbers_at(batch.slot.get() + batch.outputs[1].offset, 21) == offsets_of(items));
  }
  CHECK(pipeline.next(batch, std::chrono::milliseconds(100)) == memload::Step::end);
}

TEST(a_pass_whose_offsets_are_damaged_meanwhile_ends_with_the_error) {
  std::vector<std::int64_t> offsets = offsets_of(std::vector<std::int64_t>(64, 2));
  const auto storage = Storage::borrow(reinterpret_cast<const std::byte*>(offsets.data()), 65 * 8, "offsets", nullptr);
  const auto ragged = std::make_shared<const Ragged>(
      1, 1, std::vector<RaggedSegment>{{storage, 0, in_memory(pattern_bytes(128)), 0, 64, 128}});
  memload::PipelineOptions options;
  options.batch_rows = options.slot_rows = 16;
  memload::Pipeline pipeline({{ragged, std::nullopt}}, options);
  offsets[20] = -1;
  const auto rows = std::make_shared<std::vector<std::int64_t>>();
  for (std::int64_t row = 0; row < 64; ++row) rows->push_back(row);
  pipeline.extend({rows, *rows});
  pipeline.finish();
  memload::Batch batch;
  CHECK(pipeline.next(batch, std::chrono::seconds(20)) == memload::Step::batch);
  CHECK_THROWS(ReadError, pipeline.next(batch, std::chrono::seconds(20)));
  CHECK(pipeline.next(batch, std::chrono::seconds(20)) == memload::Step::end);
}

}  // namespace

int main() { return memload::test::run(); }
