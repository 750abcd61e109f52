// Tiles and their reader, against a copy element by element.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/base/error.h"
#include "core/columns/tiles.h"
#include "core/gather/gather.h"
#include "core/pass/pipeline.h"
#include "fixtures.h"

using namespace memload;
using namespace memload::test;
using namespace std::chrono_literals;

namespace {

using Bytes = std::vector<std::byte>;
using Sides = std::vector<std::size_t>;

std::size_t product(const Sides& sides) {
  return std::accumulate(sides.begin(), sides.end(), std::size_t{1}, std::multiplies<>());
}

// Calls body(index) for each index of an array of these sides, in C order.
template <class Body>
void each_index(const Sides& sides, Body&& body) {
  if (product(sides) == 0) return;
  Sides index(sides.size(), 0);
  while (true) {
    body(index);
    std::size_t axis = sides.size();
    while (axis > 0 && ++index[axis - 1] == sides[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

std::size_t position(const Sides& index, const Sides& sides) {
  std::size_t at = 0;
  for (std::size_t axis = 0; axis < sides.size(); ++axis) at = at * sides[axis] + index[axis];
  return at;
}

// zlib's format with nothing compressed: blocks of at most 65,535 bytes as they are.
Bytes deflated(const Bytes& bytes) {
  Bytes out{std::byte{0x78}, std::byte{0x01}};
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  const auto put = [&out](std::uint32_t value) { out.push_back(static_cast<std::byte>(value & 0xFF)); };
  std::size_t at = 0;
  do {
    const std::size_t n = std::min<std::size_t>(65535, bytes.size() - at);
    const auto length = static_cast<std::uint32_t>(n);
    put(at + n == bytes.size() ? 1 : 0);
    for (const std::uint32_t value : {length, length >> 8, ~length, ~length >> 8}) put(value);
    for (std::size_t i = at; i < at + n; ++i) {
      out.push_back(bytes[i]);
      a = (a + static_cast<std::uint32_t>(bytes[i])) % 65521;
      b = (b + a) % 65521;
    }
    at += n;
  } while (at < bytes.size());
  for (const std::uint32_t value : {b >> 8, b, a >> 8, a}) put(value);
  return out;
}

Bytes swapped(const Bytes& bytes, std::size_t unit) {
  Bytes out = bytes;
  for (std::size_t at = 0; at + unit <= out.size(); at += unit) std::reverse(&out[at], &out[at] + unit);
  return out;
}

const Filter kDeflate{Filter::Type::deflate};
Filter swap_of(std::uint32_t element) { return {Filter::Type::byteswap, element}; }

// How an array is stored.
struct Form {
  Sides tile;
  std::vector<Filter> filters{};
  bool cut = false;
  Sides order{};
  std::set<std::size_t> absent{};
  std::set<std::size_t> skipping{};  // tiles that the first filter was not applied to
};

// An array of made up elements, whole and in tiles.
struct Made {
  std::size_t row_bytes;
  Bytes whole;
  TiledArray tiled;
};

Bytes encoded(Bytes tile, const Form& form, std::uint32_t skipped) {
  for (std::size_t i = 0; i < form.filters.size(); ++i) {
    if ((skipped >> i & 1) != 0) continue;
    const Filter& filter = form.filters[i];
    tile = filter.type == Filter::Type::deflate ? deflated(tile) : swapped(tile, filter.element);
  }
  return tile;
}

Made made(std::size_t rows, const Sides& row_shape, std::size_t item, const Form& form, std::size_t salt = 0) {
  Sides shape{rows};
  shape.insert(shape.end(), row_shape.begin(), row_shape.end());
  Made result{product(row_shape) * item, pattern_bytes(product(shape) * item, salt), {}};
  TiledArray& tiled = result.tiled;
  tiled.rows = static_cast<std::int64_t>(rows);
  tiled.item_bytes = item;
  tiled.row_shape = row_shape;
  tiled.tile_shape = form.tile;
  tiled.cut = form.cut;
  tiled.order = form.order;
  tiled.fill = pattern_bytes(item, 99);
  if (!form.filters.empty()) tiled.chain = std::make_shared<const Chain>(form.filters);

  Sides order = form.order;
  if (order.empty()) {
    order.resize(shape.size());
    std::iota(order.begin(), order.end(), 0);
  }
  Sides grid;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    grid.push_back((shape[axis] + form.tile[axis] - 1) / form.tile[axis]);
  }
  Bytes file(7);
  each_index(grid, [&](const Sides& at) {
    const std::size_t number = tiled.tiles.size();
    Sides sides = form.tile;
    for (std::size_t axis = 0; form.cut && axis < shape.size(); ++axis) {
      sides[axis] = std::min(sides[axis], shape[axis] - at[axis] * form.tile[axis]);
    }
    Sides ordered;
    for (const std::size_t axis : order) ordered.push_back(sides[axis]);
    Bytes tile(product(sides) * item, std::byte{0xEE});
    const bool absent = form.absent.contains(number);
    each_index(sides, [&](const Sides& inside) {
      Sides index;
      Sides index_ordered;
      for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        index.push_back(at[axis] * form.tile[axis] + inside[axis]);
        if (index[axis] >= shape[axis]) return;
      }
      for (const std::size_t axis : order) index_ordered.push_back(inside[axis]);
      std::byte* const element = result.whole.data() + position(index, shape) * item;
      if (absent) std::memcpy(element, tiled.fill.data(), item);
      std::memcpy(tile.data() + position(index_ordered, ordered) * item, element, item);
    });
    if (absent) {
      tiled.tiles.emplace_back();
      return;
    }
    const std::uint32_t skipped = form.skipping.contains(number) ? 1 : 0;
    const Bytes stored = encoded(std::move(tile), form, skipped);
    tiled.tiles.push_back({0, skipped, file.size(), stored.size()});
    file.insert(file.end(), stored.begin(), stored.end());
  });
  tiled.storages.push_back(in_memory(std::move(file)));
  return result;
}

std::shared_ptr<const Tiles> column_of(const TiledArray& tiled) {
  return std::make_shared<const Tiles>(std::make_shared<const TileGrid>(tiled));
}

// The same, with its bytes in a file.
struct OnDisk {
  explicit OnDisk(TiledArray tiled)
      : file({tiled.storages.front()->data(), tiled.storages.front()->size()}), tiled(std::move(tiled)) {
    this->tiled.storages = {Storage::map_file(file.path())};
  }
  ScratchFile file;
  TiledArray tiled;
};

Bytes rows_of_whole(const Made& made, const std::vector<std::int64_t>& rows) {
  Bytes out;
  for (const std::int64_t row : rows) {
    const auto* const at = made.whole.data() + static_cast<std::size_t>(row) * made.row_bytes;
    out.insert(out.end(), at, at + made.row_bytes);
  }
  return out;
}

Bytes gathered(const AnyColumn& column, const std::vector<std::int64_t>& rows) {
  Bytes out(rows.size() * row_bytes_of(column));
  gather_rows({column, std::nullopt}, rows, out);
  return out;
}

std::vector<std::int64_t> drawn(std::mt19937& random, std::size_t n, std::size_t rows) {
  std::vector<std::int64_t> result(rows == 0 ? 0 : n);
  for (auto& row : result) {
    row = std::uniform_int_distribution<std::int64_t>(0, static_cast<std::int64_t>(rows) - 1)(random);
  }
  return result;
}

std::size_t pick(std::mt19937& random, std::size_t low, std::size_t high) {
  return std::uniform_int_distribution<std::size_t>(low, high)(random);
}

Made random_array(std::mt19937& random) {
  Sides row_shape(pick(random, 0, 3));
  for (auto& side : row_shape) side = pick(random, 1, 7);
  Form form;
  form.tile.push_back(pick(random, 1, 5));
  for (const std::size_t side : row_shape) form.tile.push_back(pick(random, 1, side + 2));
  const std::size_t item = std::size_t{1} << pick(random, 0, 3);
  form.cut = pick(random, 0, 1) == 1;
  if (pick(random, 0, 2) == 0) {
    form.order.resize(form.tile.size());
    std::iota(form.order.begin(), form.order.end(), 0);
    std::shuffle(form.order.begin(), form.order.end(), random);
  }
  switch (pick(random, 0, 3)) {
    case 0:
      break;
    case 1:
      form.filters = {kDeflate};
      break;
    case 2:
      form.filters = {swap_of(static_cast<std::uint32_t>(item))};
      break;
    default:
      form.filters = {swap_of(static_cast<std::uint32_t>(item)), kDeflate};
  }
  for (std::size_t number = 0; number < 60; ++number) {
    if (pick(random, 0, 6) == 0) form.absent.insert(number);
    if (!form.filters.empty() && pick(random, 0, 6) == 0) form.skipping.insert(number);
  }
  return made(pick(random, 0, 13), row_shape, item, form, random());
}

const Form kImages{.tile = {1, 40, 50, 3}, .filters = {kDeflate}};
Made images(std::size_t rows, std::size_t per_tile) {
  Form form = kImages;
  form.tile.front() = per_tile;
  return made(rows, {40, 50, 3}, 1, form);
}

}  // namespace

TEST(any_array_in_tiles_gives_its_rows) {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const Made array = random_array(random);
    const auto column = column_of(array.tiled);
    const auto rows = drawn(random, 20, static_cast<std::size_t>(array.tiled.rows));
    CHECK(gathered(column, rows) == rows_of_whole(array, rows));
  }
}

TEST(any_cut_of_the_work_gives_the_same_batch) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const Made array = random_array(random);
    const auto rows = drawn(random, 25, static_cast<std::size_t>(array.tiled.rows));
    const Gather gather({{column_of(array.tiled), std::nullopt}}, best_isa(), Store::streaming);
    const BatchLayout layout = gather.layout(rows);
    Bytes slot(layout.bytes + 64);
    Bytes workspace(gather.workspace_bytes());
    ColdReads cold;
    cold.workspace = workspace;
    const std::size_t piece = round_up(pick(random, 1, layout.work + 1), Gather::kAlign);
    for (std::size_t begin = 0; begin < layout.work; begin += piece) {
      gather.fill(layout, slot.data(), begin, std::min(begin + piece, layout.work), cold);
    }
    const Bytes expected = rows_of_whole(array, rows);
    CHECK(same(slot.data(), expected.data(), expected.size()));
  }
}

TEST(a_cast_is_done_on_the_way_whatever_the_tiles_are) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Made array = random_array(random);
    const std::size_t item = array.tiled.item_bytes;
    if (item > 2) continue;
    const auto cast = CastRule{item == 1 ? DType::u8 : DType::i16, DType::f32};
    const Bytes plain = pattern_bytes(3 * array.row_bytes);
    const std::vector<AnyColumn> members{column_of(array.tiled), dense(in_memory(plain), array.row_bytes)};
    array.whole.insert(array.whole.end(), plain.begin(), plain.end());
    const auto rows = drawn(random, 20, static_cast<std::size_t>(array.tiled.rows) + 3);
    const Bytes from = rows_of_whole(array, rows);
    std::vector<float> expected(from.size() / item);
    const auto to = reinterpret_cast<std::byte*>(expected.data());
    find_cast(cast, Isa::scalar, Store::cached)(from.data(), to, expected.size());
    for (const Store store : {Store::cached, Store::streaming}) {
      const Gather gather({{concat(members), cast}}, best_isa(), store);
      const BatchLayout layout = gather.layout(rows);
      std::vector<float> out(layout.bytes / sizeof(float) + 1);
      Bytes workspace(gather.workspace_bytes());
      ColdReads cold;
      cold.workspace = workspace;
      gather.fill(layout, reinterpret_cast<std::byte*>(out.data()), 0, layout.work, cold);
      CHECK(same(reinterpret_cast<const std::byte*>(out.data()), to, expected.size() * sizeof(float)));
    }
  }
}

TEST(selections_and_joins_with_rows_that_lie_in_place_give_what_index_arithmetic_says) {
  std::mt19937 random(4);
  const Made first = made(11, {6, 5}, 2, {.tile = {4, 3, 5}, .filters = {kDeflate}}, 1);
  const Made second = made(5, {6, 5}, 2, {.tile = {1, 6, 5}}, 2);
  const Bytes plain = pattern_bytes(9 * first.row_bytes, 3);
  const std::vector<AnyColumn> members{column_of(first.tiled), dense(in_memory(plain), first.row_bytes),
                                       column_of(second.tiled)};
  const AnyColumn joined = concat(members);
  Made all = first;
  all.whole.insert(all.whole.end(), plain.begin(), plain.end());
  all.whole.insert(all.whole.end(), second.whole.begin(), second.whole.end());
  CHECK_EQ(rows_of(joined), 25);
  const auto rows = drawn(random, 60, 25);
  CHECK(gathered(joined, rows) == rows_of_whole(all, rows));

  const auto& tiles = *std::get<std::shared_ptr<const Tiles>>(joined);
  const auto chosen = std::make_shared<const Tiles>(tiles.select(rows));
  CHECK_EQ(chosen->selection_bytes(), 60 * sizeof(std::int64_t));
  const auto again = drawn(random, 30, 60);
  std::vector<std::int64_t> through;
  for (const std::int64_t row : again) through.push_back(rows[static_cast<std::size_t>(row)]);
  CHECK(gathered(chosen, again) == rows_of_whole(all, through));

  const std::vector<AnyColumn> twice{chosen, joined};
  through.assign(rows.begin(), rows.end());
  through.push_back(24);
  std::vector<std::int64_t> in_order(60);
  std::iota(in_order.begin(), in_order.end(), 0);
  in_order.push_back(84);
  CHECK(gathered(concat(twice), in_order) == rows_of_whole(all, through));
  CHECK_THROWS(std::out_of_range, tiles.select(std::vector<std::int64_t>{25}));
  CHECK_THROWS(std::invalid_argument, concat(std::vector<AnyColumn>{joined, dense(in_memory(plain), 8)}));
}

TEST(a_tile_counts_once_for_a_batch_however_many_of_its_rows_are_wanted) {
  const Made array = images(32, 8);
  const Gather gather({{column_of(array.tiled), std::nullopt}}, Isa::scalar, Store::cached);
  const std::vector<std::int64_t> rows{3, 9, 0, 7, 3, 15};  // of the first two tiles
  const BatchLayout layout = gather.layout(rows);
  const FieldPlan& plan = *layout.shares.front().plan;
  CHECK_EQ(plan.bytes_in, array.tiled.tiles[0].bytes + array.tiled.tiles[1].bytes);
  CHECK_EQ(plan.work, 2 * 8 * array.row_bytes);
}

TEST(tiles_are_asked_for_once_for_all_rows_in_the_order_in_which_they_are_stored) {
  const Made array = images(32, 8);
  const Made raw = made(32, {40, 50, 3}, 1, {.tile = {8, 40, 25, 3}});
  const std::vector<AnyColumn> members{column_of(array.tiled), column_of(raw.tiled)};
  const auto reader = make_reader({concat(members), std::nullopt}, Isa::scalar, Store::cached);
  std::vector<std::size_t> sizes;
  reader->visit(std::vector<std::int64_t>{31, 0, 40, 30, 1, 40, 24},
                [&](const Storage&, const std::byte*, std::size_t n) { sizes.push_back(n); });
  const auto& tiles = array.tiled.tiles;
  const std::size_t half = raw.row_bytes / 2;  // of the row 8, which is wanted twice
  CHECK(sizes == (std::vector<std::size_t>{tiles[0].bytes, tiles[3].bytes, half, half, half, half}));
  CHECK_EQ(reader->row_bytes(), (tiles[0].bytes + raw.row_bytes) / 2);
}

TEST(what_is_wrong_with_an_array_is_said_when_it_is_made) {
  const Made array = made(10, {4, 6}, 2, {.tile = {3, 4, 4}});
  const auto refused = [&](const std::function<void(TiledArray&)>& damage) {
    TiledArray tiled = array.tiled;
    damage(tiled);
    CHECK_THROWS(std::invalid_argument, TileGrid(tiled));
  };
  TileGrid grid(array.tiled);
  CHECK_EQ(grid.across(), 2U);
  refused([](TiledArray& t) { t.tiles.pop_back(); });
  refused([](TiledArray& t) { t.tiles[3].offset = t.storages[0]->size() - 95; });
  refused([](TiledArray& t) { t.tiles[3].offset = ~std::uint64_t{0}; });
  refused([](TiledArray& t) { t.tiles[3].bytes -= 1; });
  refused([](TiledArray& t) { t.tiles[3].storage = 1; });
  refused([](TiledArray& t) { t.tile_shape = {3, 4}; });
  refused([](TiledArray& t) { t.tile_shape[1] = 0; });
  refused([](TiledArray& t) { t.row_shape.assign(40, 1), t.tile_shape.assign(41, 1); });
  refused([](TiledArray& t) { t.row_shape = {std::size_t{1} << 40, std::size_t{1} << 40}; });
  refused([](TiledArray& t) { t.tile_shape = {1, std::size_t{1} << 30, 4}; });
  refused([](TiledArray& t) { t.fill.pop_back(); });
  refused([](TiledArray& t) { t.item_bytes = 0; });
  refused([](TiledArray& t) { t.rows = -1; });
  refused([](TiledArray& t) { t.order = {0, 1, 1}; });
  refused([](TiledArray& t) { t.order = {0, 1}; });
  refused([](TiledArray& t) {
    t.chain = std::make_shared<const Chain>(std::vector{kDeflate});
    t.tiles[0].bytes = t.storages[0]->size() + 1;
  });
  TiledArray empty = array.tiled;
  empty.row_shape = {4, 0};
  empty.tiles.clear();
  CHECK_EQ(TileGrid(empty).across(), 0U);
  CHECK(gathered(column_of(empty), {0, 9}).empty());
}

TEST(damaged_tiles_name_file_chunk_row_and_offset) {
  Made array = images(12, 4);
  OnDisk disk(array.tiled);
  StoredTile& tile = disk.tiled.tiles[2];
  tile.bytes -= 100;
  const auto column = column_of(disk.tiled);
  CHECK(gathered(column, {7, 0}) == rows_of_whole(array, {7, 0}));
  try {
    gathered(column, {0, 11, 9});
    CHECK(false);
  } catch (const ReadError& error) {
    const std::string what = error.what();
    CHECK_EQ(error.file(), disk.file.path());
    CHECK_EQ(error.row(), 9);
    CHECK_EQ(error.offset(), tile.offset);
    CHECK(what.find("chunk (2, 0, 0, 0)") != std::string::npos);
    CHECK(what.find("deflate") != std::string::npos);
  }
}

TEST(a_file_that_is_cut_short_is_an_error_for_the_rows_that_are_gone) {
  for (const bool raw : {false, true}) {
    Form form = kImages;
    if (raw) form.filters.clear();
    const Made array = made(12, {40, 50, 3}, 1, form);
    OnDisk disk(array.tiled);
    const auto column = column_of(disk.tiled);
    disk.file.truncate(disk.tiled.tiles[6].offset / kPage * kPage);
    CHECK(gathered(column, {2}) == rows_of_whole(array, {2}));
    try {
      gathered(column, {1, 8});
      CHECK(false);
    } catch (const ReadError& error) {
      CHECK_EQ(error.row(), 8);
      CHECK_EQ(error.file(), disk.file.path());
      CHECK(error.offset() >= disk.tiled.tiles[8].offset);
    }
  }
}

TEST(a_chunk_that_is_cut_while_it_is_decoded_is_an_error_for_its_row_alone) {
  const Made array = made(4, {100, 300, 3}, 1, {.tile = {1, 100, 300, 3}, .filters = {kDeflate}});
  for (const std::size_t pages : {0, 1, 9, 20}) {
    OnDisk disk(array.tiled);
    const auto column = column_of(disk.tiled);
    CHECK(gathered(column, {3, 0}) == rows_of_whole(array, {3, 0}));
    const std::size_t end = (disk.tiled.tiles[2].offset / kPage + 1 + pages) * kPage;
    disk.file.truncate(end);
    for (const std::int64_t gone : {2, 3}) {
      try {
        gathered(column, {0, gone});
        CHECK(false);
      } catch (const ReadError& error) {
        CHECK_EQ(error.row(), gone);
        CHECK(error.offset() >= end);
      }
      CHECK(gathered(column, {1, 0}) == rows_of_whole(array, {1, 0}));
    }
  }
}

TEST(chunks_that_are_overwritten_while_they_are_decoded_give_bytes_or_an_error) {
  const Made array = images(64, 1);
  const OnDisk disk(array.tiled);
  const auto column = column_of(disk.tiled);
  {
    const std::jthread writer([&](const std::stop_token& stop) {
      std::mt19937 random(1);
      std::fstream file(disk.file.path(), std::ios::in | std::ios::out | std::ios::binary);
      while (!stop.stop_requested()) {
        const StoredTile& tile = disk.tiled.tiles[pick(random, 0, 63)];
        file.seekp(static_cast<std::streamoff>(tile.offset + pick(random, 0, tile.bytes - 1)));
        file.put(static_cast<char>(pick(random, 0, 255))).flush();
      }
    });
    for (std::int64_t k = 0; k < 2000; ++k) {
      try {
        CHECK_EQ(gathered(column, {k % 64}).size(), array.row_bytes);
      } catch (const ReadError& error) {
        CHECK_EQ(error.row(), k % 64);
      }
    }
  }
}

TEST(files_that_are_opened_for_each_read_give_the_same_rows_and_say_when_they_are_cut_or_gone) {
  const Made array = images(12, 4);
  const auto size = array.tiled.storages.front()->size();
  std::string gone;
  std::shared_ptr<const Tiles> column;
  {
    OnDisk disk(array.tiled);
    gone = disk.file.path();
    disk.tiled.storages = {Storage::name_file(gone, size)};
    column = column_of(disk.tiled);
    CHECK(gathered(column, {7, 0, 11}) == rows_of_whole(array, {7, 0, 11}));
    Gather gather({{column, std::nullopt}}, best_isa(), Store::cached);
    gather.advise(std::vector<std::int64_t>{3, 9});
    disk.file.truncate(disk.tiled.tiles[1].offset + 5);
    CHECK(gathered(column, {3}) == rows_of_whole(array, {3}));
    try {
      gathered(column, {3, 6});
      CHECK(false);
    } catch (const ReadError& error) {
      CHECK_EQ(error.row(), 6);
      CHECK_EQ(error.offset(), disk.tiled.tiles[1].offset);
      CHECK(std::string(error.what()).find("ends at " + std::to_string(disk.tiled.tiles[1].offset + 5)) !=
            std::string::npos);
    }
  }
  CHECK_THROWS(ReadError, gathered(column, {0}));
  const auto named = Storage::name_file(gone, 64);
  CHECK_THROWS(std::invalid_argument, Column(8, {{named, 0, 8, 8}}));
  TiledArray bare;
  bare.rows = 8;
  bare.tile_shape = {8};
  bare.storages = {named};
  bare.tiles = {{0, 0, 0, 8}};
  bare.fill = Bytes(1);
  CHECK_THROWS(std::invalid_argument, TileGrid(bare));
}

TEST(a_pipeline_gives_decoded_rows_beside_plain_ones_and_counts_what_it_read) {
  const Made array = images(200, 8);
  OnDisk disk(array.tiled);
  const std::vector<std::byte> numbers = pattern_bytes(200 * 12, 5);
  const auto order = shuffled(200, 6);
  for (const int threads : {1, 3}) {
    PipelineOptions options;
    options.batch_rows = options.slot_rows = 16;
    options.threads = threads;
    options.isa = best_isa();
    Pipeline pipeline(
        {{column_of(disk.tiled), CastRule{DType::u8, DType::f32}}, {dense(in_memory(numbers), 12), std::nullopt}},
        options);
    pipeline.extend({nullptr, order});
    pipeline.finish();
    std::size_t at = 0;
    Batch batch;
    for (Step step = pipeline.next(batch, 1000ms); step != Step::end; step = pipeline.next(batch, 1000ms)) {
      if (step != Step::batch) continue;
      const auto* const values = reinterpret_cast<const float*>(batch.slot.get() + batch.outputs[0].offset);
      for (std::size_t i = 0; i < batch.row_numbers.size(); ++i, ++at) {
        const auto row = static_cast<std::size_t>(order[at]);
        const std::byte* const expected = array.whole.data() + row * array.row_bytes;
        bool equal = true;
        for (std::size_t k = 0; k < array.row_bytes; ++k) {
          equal = equal && values[i * array.row_bytes + k] == static_cast<float>(expected[k]);
        }
        CHECK(equal);
        CHECK(same(batch.slot.get() + batch.outputs[1].offset + i * 12, numbers.data() + row * 12, 12));
      }
    }
    CHECK_EQ(at, 200U);
    CHECK(pipeline.stats().decode_seconds > 0);
    CHECK(pipeline.stats().bytes_in > 200U * 12);
  }
}

TEST(a_pass_that_keeps_tiles_decodes_each_once_gives_the_same_rows_and_may_end_early) {
  const Made array = images(200, 8);
  OnDisk disk(array.tiled);
  const auto order = shuffled(200, 6);
  for (const std::size_t taken : {std::size_t{200}, std::size_t{32}}) {
    for (const int threads : {1, 4}) {
      PipelineOptions options;
      options.batch_rows = options.slot_rows = 16;
      options.threads = threads;
      options.tile_bytes = 2 * array.whole.size();
      Pipeline pipeline({{column_of(disk.tiled), std::nullopt}, {column_of(array.tiled), std::nullopt}}, options);
      pipeline.extend({nullptr, order});
      pipeline.finish();
      std::size_t at = 0;
      Batch batch;
      while (at < taken) {
        const Step step = pipeline.next(batch, 1000ms);
        if (step == Step::end) break;
        if (step != Step::batch) continue;
        for (std::size_t i = 0; i < batch.row_numbers.size(); ++i, ++at) {
          const std::byte* const row = array.whole.data() + static_cast<std::size_t>(order[at]) * array.row_bytes;
          for (const std::size_t field : {0, 1}) {
            const std::byte* const got = batch.slot.get() + batch.outputs[field].offset + i * array.row_bytes;
            CHECK(same(got, row, array.row_bytes));
          }
        }
      }
      if (taken < 200) continue;
      CHECK_EQ(at, 200U);
      CHECK_EQ(pipeline.stats().decoded_tiles, 2 * array.tiled.tiles.size());
      CHECK(pipeline.stats().reused_bytes > 0);
    }
  }
}

TEST(pipelines_that_share_tiles_keep_to_the_bytes_of_the_first_and_decode_each_tile_once) {
  const Made one = images(96, 8);
  const Made two = images(64, 4);
  PipelineOptions options;
  options.batch_rows = options.slot_rows = 16;
  options.tile_bytes = one.whole.size() + two.whole.size();
  Pipeline first({{column_of(one.tiled), std::nullopt}}, options);
  options.tile_bytes = 0;
  options.tiles = first.tiles();
  Pipeline second({{column_of(two.tiled), std::nullopt}}, options);
  CHECK(second.tiles() == first.tiles());
  const auto read = [](Pipeline& pipeline, const Made& array) {
    const auto order = shuffled(array.whole.size() / array.row_bytes, 3);
    pipeline.extend({nullptr, order});
    pipeline.finish();
    std::size_t at = 0;
    Batch batch;
    for (Step step = pipeline.next(batch, 1000ms); step != Step::end; step = pipeline.next(batch, 1000ms)) {
      if (step != Step::batch) continue;
      for (std::size_t i = 0; i < batch.row_numbers.size(); ++i, ++at) {
        const std::byte* const row = array.whole.data() + static_cast<std::size_t>(order[at]) * array.row_bytes;
        CHECK(same(batch.slot.get() + batch.outputs[0].offset + i * array.row_bytes, row, array.row_bytes));
      }
    }
    CHECK_EQ(pipeline.stats().decoded_tiles, array.tiled.tiles.size());
  };
  read(first, one);
  read(second, two);
}

TEST(a_pipeline_reports_a_damaged_tile_and_others_go_on) {
  Made array = images(64, 4);
  array.tiled.tiles[9].bytes -= 7;
  for (const std::size_t kept : {std::size_t{0}, 2 * array.whole.size()}) {
    PipelineOptions options;
    options.tile_bytes = kept;
    options.batch_rows = options.slot_rows = 8;
    options.threads = 3;
    Pipeline pipeline({{column_of(array.tiled), std::nullopt}}, options);
    Pipeline other({{column_of(images(64, 4).tiled), std::nullopt}}, options);
    const auto order = shuffled(64, 1);
    for (Pipeline* one : {&pipeline, &other}) {
      one->extend({nullptr, order});
      one->finish();
    }
    const auto drain = [](Pipeline& one) {
      std::size_t rows = 0;
      Batch batch;
      for (Step step = one.next(batch, 1000ms); step != Step::end; step = one.next(batch, 1000ms)) {
        if (step == Step::batch) rows += batch.row_numbers.size();
      }
      return rows;
    };
    CHECK_THROWS(ReadError, drain(pipeline));
    CHECK_EQ(drain(other), 64U);
  }
}

int main() { return memload::test::run(); }
