// Rows of different length whose items lie in encoded tiles, against the same rows in place.
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "codec/encode.h"
#include "core/base/error.h"
#include "core/columns/ragged.h"
#include "core/gather/gather.h"
#include "core/gather/ragged_gather.h"
#include "core/pass/pipeline.h"
#include "tests/check.h"
#include "tests/fixtures.h"

using namespace memload;
using namespace memload::test;

namespace {

using Bytes = std::vector<std::byte>;
using RaggedPtr = std::shared_ptr<const Ragged>;

std::shared_ptr<const Chain> chain_of(std::size_t item_bytes) {
  return std::make_shared<const Chain>(
      std::vector<Filter>{{Filter::Type::shuffle, static_cast<std::uint32_t>(item_bytes)}, {Filter::Type::lz4}});
}

Bytes bytes_of(const std::vector<std::int64_t>& numbers) {
  Bytes bytes(numbers.size() * sizeof(std::int64_t));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

// Rows of these lengths behind three items that are nobody's; planes one behind the other.
struct Rows {
  std::vector<std::int64_t> offsets{3};
  std::size_t item_bytes;
  std::size_t planes;
  Bytes values;

  Rows(const std::vector<std::int64_t>& lengths, std::size_t item, std::size_t n, std::size_t salt = 0)
      : item_bytes(item), planes(n) {
    for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
    values = pattern_bytes(static_cast<std::size_t>(offsets.back()) * item * n, salt);
    for (std::byte& byte : values) byte &= std::byte{0x3};  // so that they compress
  }

  [[nodiscard]] std::int64_t items() const { return offsets.back(); }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  [[nodiscard]] std::size_t plane_bytes() const { return values.size() / planes; }

  [[nodiscard]] RaggedSegment in_place() const {
    return {in_memory(bytes_of(offsets), "offsets"), 0, in_memory(values, "values"), 0, rows(), items(), plane_bytes()};
  }

  // All planes in one storage, which `keep` makes of its bytes.
  template <class Keep>
  [[nodiscard]] RaggedSegment coded(std::size_t tile_items, Keep&& keep) const {
    Bytes stored;
    std::vector<std::vector<StoredTile>> tiles(planes);
    const auto chain = chain_of(item_bytes);
    for (std::size_t plane = 0; plane < planes; ++plane) {
      const std::span<const std::byte> whole = std::span(values).subspan(plane * plane_bytes(), plane_bytes());
      for (std::size_t at = 0; at < whole.size(); at += tile_items * item_bytes) {
        const Bytes tile =
            encode(*chain, whole.subspan(at, std::min(tile_items * item_bytes, whole.size() - at)), Effort{});
        tiles[plane].push_back({0, 0, stored.size(), tile.size()});
        stored.insert(stored.end(), tile.begin(), tile.end());
      }
    }
    const std::shared_ptr<const Storage> storage = keep(stored);
    RaggedSegment segment{in_memory(bytes_of(offsets), "offsets"), 0, nullptr, 0, rows(), items(), 0};
    for (std::vector<StoredTile>& of_plane : tiles) {
      TiledArray array{items(),           item_bytes, {}, {tile_items}, {storage}, std::move(of_plane), chain,
                       Bytes(item_bytes), true,       {}};
      segment.coded.push_back(std::make_shared<const TileGrid>(std::move(array)));
    }
    return segment;
  }

  [[nodiscard]] RaggedSegment coded(std::size_t tile_items) const {
    return coded(tile_items, [](const Bytes& stored) { return in_memory(stored, "stored"); });
  }
};

RaggedPtr column(std::size_t item_bytes, std::size_t planes, std::vector<RaggedSegment> segments) {
  return std::make_shared<const Ragged>(item_bytes, planes, std::move(segments));
}

std::vector<std::int64_t> random_lengths(std::size_t rows, std::int64_t most, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> lengths(rows);
  for (std::int64_t& n : lengths)
    n = random() % 4 == 0 ? 0 : std::uniform_int_distribution<std::int64_t>(0, most)(random);
  return lengths;
}

// What a gather puts into a slot, made in pieces of 64 bytes, the last first.
Bytes gathered(const RaggedPtr& ragged, const std::vector<std::int64_t>& rows,
               const std::optional<CastRule>& cast = std::nullopt) {
  const Gather gather({{ragged, cast}}, Isa::scalar, Store::cached);
  const BatchLayout layout = gather.layout(rows);
  const HugeMemory workspace(gather.workspace_bytes());
  ColdReads cold;
  cold.workspace = {workspace.data(), workspace.size()};
  Bytes slot(layout.bytes + 64);
  for (std::size_t at = (layout.work + 63) / 64 * 64; at != 0;) {
    const std::size_t end = std::min(at, layout.work);
    at -= 64;
    gather.fill(layout, slot.data(), at, end, cold);
  }
  return slot;
}

void check_same(const RaggedPtr& coded, const RaggedPtr& plain, const std::vector<std::int64_t>& rows,
                const std::optional<CastRule>& cast = std::nullopt) {
  CHECK(gathered(coded, rows, cast) == gathered(plain, rows, cast));
}

TEST(a_batch_of_encoded_rows_is_that_of_the_same_rows_in_place) {
  for (const std::size_t item_bytes : {1, 2, 12}) {
    for (const std::size_t planes : {1, 3}) {
      const Rows rows(random_lengths(40, 90, 1), item_bytes, planes);
      const RaggedPtr plain = column(item_bytes, planes, {rows.in_place()});
      for (const std::size_t tile_items : {1, 7, 64, 5000}) {
        const RaggedPtr coded = column(item_bytes, planes, {rows.coded(tile_items)});
        CHECK(coded->decodes() && !plain->decodes());
        for (const auto& wanted : {shuffled(40, 2), {}, {7}, {3, 3, 39, 3, 0}}) check_same(coded, plain, wanted);
        Bytes want(static_cast<std::size_t>(plain->items()) * planes * item_bytes);
        Bytes found(want.size());
        gather_items(plain, shuffled(40, 3), want);
        gather_items(coded, shuffled(40, 3), found);
        CHECK(found == want);
      }
    }
  }
}

TEST(encoded_rows_are_selected_and_joined_with_rows_in_place) {
  const Rows first(random_lengths(30, 50, 3), 4, 2, 1);
  const Rows second(random_lengths(20, 400, 4), 4, 2, 2);
  const RaggedPtr plain = column(4, 2, {first.in_place(), second.in_place()});
  const RaggedPtr mixed = column(4, 2, {first.coded(16), second.in_place()});
  check_same(mixed, plain, shuffled(50, 5));
  const auto choose = [](const RaggedPtr& whole) {
    const RaggedPtr chosen = std::make_shared<const Ragged>(whole->select(shuffled(50, 6)));
    return std::make_shared<const Ragged>(Ragged::concat(std::vector<RaggedPtr>{chosen, whole}));
  };
  check_same(choose(mixed), choose(plain), shuffled(100, 7));
}

TEST(encoded_rows_are_padded_cast_and_increased_like_others) {
  const Rows bytes(random_lengths(30, 50, 3), 1, 1);
  const auto pad = [](const RaggedPtr& of) {
    return std::make_shared<const Ragged>(of->padded(Bytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}));
  };
  const RaggedPtr plain = column(1, 1, {bytes.in_place()});
  const RaggedPtr coded = column(1, 1, {bytes.coded(16)});
  const CastRule cast{DType::u8, DType::f32, true};
  check_same(coded, plain, shuffled(30, 5), cast);
  check_same(pad(coded), pad(plain), shuffled(30, 5), cast);
  Bytes want(30 * static_cast<std::size_t>(plain->longest(1)));
  Bytes found(want.size(), std::byte{0xAA});
  const RaggedPtr zeros = std::make_shared<const Ragged>(coded->padded());
  gather_items(std::make_shared<const Ragged>(plain->padded()), shuffled(30, 5), want);
  gather_items(zeros, shuffled(30, 5), found);
  CHECK(found == want);
  check_same(zeros, std::make_shared<const Ragged>(plain->padded()), shuffled(30, 5));
  const Rows edges(random_lengths(30, 50, 8), 8, 2);
  const auto count = [&](const RaggedSegment& of) {
    return std::make_shared<const Ragged>(Ragged(8, 2, {of}).counted_by(plain));
  };
  check_same(count(edges.coded(16)), count(edges.in_place()), shuffled(30, 9));
}

TEST(tiles_that_do_not_hold_the_items_are_refused) {
  const Rows rows({4, 5}, 2, 2);
  RaggedSegment good = rows.coded(4);
  CHECK_EQ(Ragged(2, 2, {good}).items(), 9);
  CHECK_THROWS(std::invalid_argument, Ragged(4, 2, {good}));
  CHECK_THROWS(std::invalid_argument, Ragged(2, 1, {good}));
  RaggedSegment other = good;
  other.coded.back() = rows.coded(3).coded.back();
  CHECK_THROWS(std::invalid_argument, Ragged(2, 2, {other}));
  other.coded.back() = Rows({4, 6}, 2, 2).coded(4).coded.back();
  CHECK_THROWS(std::invalid_argument, Ragged(2, 2, {other}));
}

TEST(a_damaged_tile_and_a_file_that_is_cut_short_are_errors_that_name_the_file) {
  const Rows rows(std::vector<std::int64_t>(4000, 8), 4, 1);
  std::unique_ptr<ScratchFile> file;
  const RaggedSegment segment = rows.coded(256, [&file](const Bytes& stored) {
    file = std::make_unique<ScratchFile>(stored);
    return Storage::map_file(file->path());
  });
  const RaggedPtr coded = column(4, 1, {segment});
  const RaggedPtr plain = column(4, 1, {rows.in_place()});
  check_same(coded, plain, shuffled(4000, 1));
  file->truncate(4096);
  std::string said;
  try {
    gathered(coded, {3999});
  } catch (const ReadError& error) {
    said = error.what();
  }
  CHECK(said.find(file->path()) != std::string::npos);
  check_same(coded, plain, {0});
  const RaggedSegment damaged = rows.coded(256, [](Bytes stored) {
    for (std::size_t i = 0; i < 64; ++i) stored[i] = std::byte{0xFF};
    return in_memory(stored, "damaged");
  });
  CHECK_THROWS(ReadError, gathered(column(4, 1, {damaged}), {0}));
}

TEST(a_pass_over_encoded_rows_gives_the_batches_of_rows_in_place) {
  const Rows rows(random_lengths(500, 3000, 4), 4, 1);
  const RaggedPtr plain = column(4, 1, {rows.in_place()});
  PipelineOptions options;
  options.batch_rows = options.slot_rows = 20;
  options.threads = 4;
  Pipeline pipeline({{column(4, 1, {rows.coded(1024)}), std::nullopt}}, options);
  const auto order = std::make_shared<const std::vector<std::int64_t>>(shuffled(500, 1));
  pipeline.extend({order, *order});
  pipeline.finish();
  Batch batch;
  for (std::size_t at = 0; at < order->size(); at += 20) {
    while (pipeline.next(batch, std::chrono::milliseconds(100)) == Step::waiting) {
    }
    const auto first = order->begin() + static_cast<std::ptrdiff_t>(at);
    const Bytes want = gathered(plain, {first, first + 20});
    const std::size_t n = static_cast<std::size_t>(batch.outputs[0].rows) * 4;
    CHECK(same(batch.slot.get() + batch.outputs[0].offset, want.data(), n));
    CHECK(same(batch.slot.get() + batch.outputs[1].offset, want.data() + round_up(n, 64), 21 * 8));
  }
  CHECK(pipeline.next(batch, std::chrono::milliseconds(100)) == Step::end);
}

}  // namespace

int main() { return memload::test::run(); }
