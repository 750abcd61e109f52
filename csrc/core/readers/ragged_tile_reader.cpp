#include "core/readers/ragged_tile_reader.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/base/fault_guard.h"
#include "core/readers/run_copier.h"
#include "core/readers/tile_decoder.h"

namespace memload {
namespace {

constexpr std::size_t kInPlace = std::size_t{1} << 20;  // bytes of items in place that are one unit
constexpr std::size_t kEmpty = ~std::size_t{0};         // stands for the segment of rows without items

// What a row of the batch has of a tile.
struct Piece {
  std::size_t row;    // in the batch
  std::int64_t from;  // its first item, in the tile
  std::int64_t items;
  std::int64_t at;  // its first item, in the row
};

struct FoundPiece {
  std::size_t segment;
  std::size_t plane;
  std::int64_t tile;
  Piece piece;
};

// A tile of a plane of a segment; of segments in place, so many items as if they were one. Or, of no segment, what pads
// the rows that have no items.
struct TileShare {
  std::size_t segment;
  std::size_t plane;
  std::size_t tile;
  std::size_t first;  // of its pieces, which end where those of the next unit begin
  std::size_t work;   // where its work begins
};

std::int64_t items_of_tile(const RaggedSegment& segment, std::size_t item_bytes) {
  const std::size_t in_place = std::max<std::size_t>(1, kInPlace / item_bytes);
  return static_cast<std::int64_t>(segment.coded.empty() ? in_place : segment.coded.front()->band_rows());
}

}  // namespace

struct RaggedTileReader::Plan : RaggedPlan {
  std::vector<Piece> pieces;
  std::vector<TileShare> units;    // the last has no pieces, and is the second output
  std::vector<std::size_t> empty;  // rows of the batch without items
};

// What one call of fill() does.
class RaggedTileReader::Share {
 public:
  Share(const RaggedForm& form, const Plan& plan, std::byte* out, const ColdReads& cold, Filled& found)
      : form_(form),
        plan_(plan),
        out_(out),
        copier_(Mover(form.kernel(), form.in_size(), form.out_size()), cold, found),
        decoder_(cold, found),
        found_(found) {}

  void run(std::size_t begin, std::size_t end) {
    auto unit = std::ranges::lower_bound(plan_.units, begin, {}, &TileShare::work);
    for (; unit != plan_.units.end() && unit->work < end; ++unit) {
      if (unit == std::prev(plan_.units.end())) return plan_.put_numbers(out_, 0, plan_.numbers_bytes());
      if (unit->segment == kEmpty) {
        for (const std::size_t row : plan_.empty) pad(row);
        continue;
      }
      const std::span pieces = std::span(plan_.pieces).subspan(unit->first, std::next(unit)->first - unit->first);
      const RaggedSegment& segment = form_.ragged().segments()[unit->segment];
      if (segment.coded.empty()) {
        copy(segment, unit->plane, pieces);
      } else {
        decode(*segment.coded[unit->plane], *unit, pieces);
      }
    }
  }

 private:
  void decode(const TileGrid& grid, const TileShare& unit, std::span<const Piece> pieces) {
    const std::size_t bytes = grid.tile_bytes(unit.tile);
    const std::int64_t row = plan_.runs[pieces.front().row].row_in_segment;
    const bool whole = static_cast<std::size_t>(pieces.front().items) * form_.ragged().item_bytes() == bytes;
    const bool in_slot = pieces.size() == 1 && whole && !form_.casts() && plan_.increments.empty();
    std::byte* const decoded = in_slot ? place(unit.plane, pieces.front()) : decoder_.room(grid);
    decoder_.decode(grid, unit.tile, {decoded, bytes}, row);
    for (const Piece& piece : pieces) {
      const std::byte* const items = decoded + static_cast<std::size_t>(piece.from) * form_.ragged().item_bytes();
      if (!in_slot) form_.put(plan_, piece.row, items, place(unit.plane, piece), elements(piece));
      end_row(piece);
    }
  }

  void copy(const RaggedSegment& segment, std::size_t plane, std::span<const Piece> pieces) {
    const Storage& storage = *segment.values;
    const void* const fault = guarded([&]() noexcept {
      for (const Piece& piece : pieces) {
        current_ = piece.row;
        const Run& run = plan_.runs[piece.row];
        const auto skipped = static_cast<std::size_t>(piece.at) * form_.ragged().item_bytes();
        const std::byte* const items = run.data + plane * segment.plane_stride + skipped;
        copy_run(storage, items, piece, place(plane, piece));
        end_row(piece);
      }
    });
    if (fault != nullptr) throw storage.unreadable(plan_.runs[current_].row_in_segment, fault);
  }

  void copy_run(const Storage& storage, const std::byte* items, const Piece& piece, std::byte* out) noexcept {
    const std::size_t bytes = static_cast<std::size_t>(piece.items) * form_.ragged().item_bytes();
    if (plan_.increments.empty()) {
      copier_.copy(storage, {items, out, elements(piece), bytes});
      return;
    }
    if (!storage.enter(items, bytes)) found_.in_cache = false;
    form_.put(plan_, piece.row, items, out, elements(piece));
  }

  // Pads the row behind its last piece.
  void end_row(const Piece& piece) noexcept {
    if (piece.at + piece.items == plan_.runs[piece.row].items) pad(piece.row);
  }

  void pad(std::size_t row) noexcept {
    if (!form_.ragged().pads()) return;
    const std::size_t filled = static_cast<std::size_t>(plan_.runs[row].items) * form_.out_item_bytes();
    const std::size_t begin = plan_.starts[row] + filled;
    form_.pad(out_ + begin, plan_.starts[row + 1] - begin, begin);
  }

  [[nodiscard]] std::byte* place(std::size_t plane, const Piece& piece) const noexcept {
    return out_ + plane * plan_.plane_bytes + plan_.starts[piece.row] +
           static_cast<std::size_t>(piece.at) * form_.out_item_bytes();
  }

  [[nodiscard]] std::size_t elements(const Piece& piece) const noexcept {
    return static_cast<std::size_t>(piece.items) * form_.ragged().item_bytes() / form_.in_size();
  }

  const RaggedForm& form_;
  const Plan& plan_;
  std::byte* out_;
  RunCopier copier_;
  TileDecoder decoder_;
  Filled& found_;
  volatile std::size_t current_ = 0;  // read after a jump out of what is guarded
};

RaggedTileReader::RaggedTileReader(RaggedForm form) : form_(std::move(form)) {
  for (const RaggedSegment& segment : form_.ragged().segments()) {
    for (const auto& grid : segment.coded) {
      workspace_bytes_ = std::max(workspace_bytes_, TileDecoder::workspace_bytes(*grid));
    }
  }
}

std::unique_ptr<const FieldPlan> RaggedTileReader::plan(std::span<const std::int64_t> rows, Seeds) const {
  auto plan = std::make_unique<Plan>();
  form_.plan(rows, *plan);
  find_units(*plan);
  plan->values_work = plan->work;
  plan->work = batch_bytes(1, plan->work + plan->numbers_bytes() + sizeof(std::int64_t));
  return plan;
}

void RaggedTileReader::find_units(Plan& plan) const {
  const Ragged& ragged = form_.ragged();
  std::vector<FoundPiece> found;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const Run& run = plan.runs[i];
    if (run.items == 0) plan.empty.push_back(i);
    const auto segment = static_cast<std::size_t>(run.segment - ragged.segments().data());
    const std::int64_t size = items_of_tile(*run.segment, ragged.item_bytes());
    for (std::size_t plane = 0; plane < ragged.planes(); ++plane) {
      for (std::int64_t at = 0; at < run.items;) {
        const std::int64_t from = (run.first + at) % size;
        const std::int64_t items = std::min(size - from, run.items - at);
        found.push_back({segment, plane, (run.first + at) / size, {i, from, items, at}});
        at += items;
      }
    }
  }
  std::ranges::sort(
      found, {}, [](const FoundPiece& f) { return std::tuple(f.segment, f.plane, f.tile, f.piece.from, f.piece.row); });
  plan.bytes_in = 0;
  plan.pieces.reserve(found.size());
  for (const auto& [segment, plane, number, piece] : found) {
    const auto tile = static_cast<std::size_t>(number);
    const RaggedSegment& where = ragged.segments()[segment];
    const TileShare* const last = plan.units.empty() ? nullptr : &plan.units.back();
    if (last == nullptr || last->segment != segment || last->plane != plane || last->tile != tile) {
      plan.units.push_back({segment, plane, tile, plan.pieces.size(), plan.work});
      if (!where.coded.empty()) {
        const TileGrid& grid = *where.coded[plane];
        plan.work = batch_bytes(1, plan.work + grid.tile_bytes());
        plan.bytes_in += grid.tile(tile).bytes;
      }
    }
    if (where.coded.empty()) {
      const std::size_t bytes = static_cast<std::size_t>(piece.items) * ragged.item_bytes();
      plan.work = batch_bytes(1, plan.work + bytes);
      plan.bytes_in += bytes;
    }
    plan.pieces.push_back(piece);
  }
  if (ragged.pads() && !plan.empty.empty()) {
    plan.units.push_back({kEmpty, 0, 0, plan.pieces.size(), plan.work});
    plan.work = batch_bytes(1, plan.work + plan.empty.size() * (plan.starts.back() / plan.runs.size()) + 1);
  }
  plan.units.push_back({0, 0, 0, plan.pieces.size(), plan.work});
}

void RaggedTileReader::fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end,
                            const ColdReads& cold, Filled& found) const {
  if (cold.workspace.size() < workspace_bytes_) throw std::invalid_argument("too little memory to decode in");
  Share(form_, static_cast<const Plan&>(plan), out, cold, found).run(begin, end);
}

// A row whose offsets cannot be read is left out here: whoever wants it is told by plan().
void RaggedTileReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  const Ragged& ragged = form_.ragged();
  for (const std::int64_t row : rows) {
    Run run;
    try {
      ragged.find({&row, 1}, {&run, 1});
    } catch (const ReadError&) {
      continue;
    }
    if (run.items == 0) continue;
    const std::int64_t size = items_of_tile(*run.segment, ragged.item_bytes());
    for (std::size_t plane = 0; plane < ragged.planes(); ++plane) {
      if (run.segment->coded.empty()) {
        const std::size_t bytes = static_cast<std::size_t>(run.items) * ragged.item_bytes();
        each(*run.segment->values, run.data + plane * run.segment->plane_stride, bytes);
        continue;
      }
      const TileGrid& grid = *run.segment->coded[plane];
      for (std::int64_t tile = run.first / size; tile <= (run.first + run.items - 1) / size; ++tile) {
        const StoredTile& stored = grid.tile(static_cast<std::size_t>(tile));
        if (grid.storage(stored).closed()) continue;
        const std::span<const std::byte> bytes = grid.stored(stored);
        each(grid.storage(stored), bytes.data(), bytes.size());
      }
    }
  }
}

void RaggedTileReader::visit_storages(const std::function<void(const Storage&)>& each) const {
  for (const RaggedSegment& segment : form_.ragged().segments()) {
    if (segment.coded.empty()) each(*segment.values);
    for (const auto& grid : segment.coded) {
      for (const auto& storage : grid->array().storages) each(*storage);
    }
    each(*segment.offsets);
  }
}

}  // namespace memload
