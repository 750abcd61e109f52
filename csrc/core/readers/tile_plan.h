// The plan of a batch of rows inside tiles: which tiles it needs, and which of their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/columns/tiles.h"
#include "core/readers/field_reader.h"

namespace memload {

// A row that a batch wants of a band, and where in the batch it goes.
struct WantedRow {
  std::size_t row;
  std::size_t at;
};

// A row lies in a band of a part. Where rows lie in place, each is a band by itself.
struct FoundRow {
  std::size_t part;
  std::size_t band;
  WantedRow wanted;
};

// The tiles that hold the same rows of a part. Each tile is a unit of work.
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

// Gives the rows in the order in which they are stored.
[[nodiscard]] std::vector<FoundRow> find_rows(const Tiles& tiles, std::span<const std::int64_t> rows);

// Plans these rows; the caller adds the bytes of the slot. Throws std::length_error for more work than can be counted.
[[nodiscard]] std::unique_ptr<TilePlan> plan_tiles(const Tiles& tiles, std::span<const std::int64_t> rows);

// Stored bytes that a read of a single row takes, on average over the stored rows.
[[nodiscard]] std::size_t read_bytes_of(const Tiles& tiles) noexcept;

}  // namespace memload
