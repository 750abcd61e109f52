// What a batch asks of rows inside tiles, worked out once: which tiles it needs, and which of their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/field_reader.h"
#include "core/tiles.h"

namespace memload {

// A row that a batch wants of a band, and where in the batch it goes.
struct WantedRow {
  std::size_t row;
  std::size_t at;
};

// Where a row lies: in a band of a part; where rows lie in place, each is a band by itself.
struct FoundRow {
  std::size_t part;
  std::size_t band;
  WantedRow wanted;
};

// The tiles that hold the same rows of a part, each a unit of work.
struct Band {
  std::size_t part;
  std::size_t number;
  std::size_t first;  // of its rows in TilePlan::wanted, which end where those of the next band begin
  std::size_t work;   // where its first unit begins
};

struct TilePlan : FieldPlan {
  std::vector<WantedRow> wanted;
  std::vector<Band> bands;  // the last is empty: it ends the one before

  [[nodiscard]] std::span<const WantedRow> wanted_of(const Band& band) const {
    return std::span(wanted).subspan(band.first, (&band + 1)->first - band.first);
  }
};

// The units of a band, and the work that each counts for: the bytes of a whole tile.
struct BandCost {
  std::size_t units;
  std::size_t work;
};

[[nodiscard]] BandCost band_cost(const Tiles& tiles, std::size_t part) noexcept;

// The rows in the order in which they are stored.
[[nodiscard]] std::vector<FoundRow> find_rows(const Tiles& tiles, std::span<const std::int64_t> rows);

// Of these rows; what the batch takes in the slot is for the caller to add. Throws std::length_error if that is more
// work than can be counted.
[[nodiscard]] std::unique_ptr<TilePlan> plan_tiles(const Tiles& tiles, std::span<const std::int64_t> rows);

// Stored bytes that are read for a row by itself, on average over the stored rows.
[[nodiscard]] std::size_t read_bytes_of(const Tiles& tiles) noexcept;

}  // namespace memload
