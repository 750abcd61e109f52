// A column of any kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>

namespace memload {

class Column;
class EventCounts;
class EventItems;
class Ragged;
class Slices;
class Tiles;
class Windows;

// The kinds of columns: rows that are one run of bytes each, rows inside tiles, overlapping windows of frames, rows
// that differ in length, and slices of time of frames and of events, which are counted or listed.
using AnyColumn =
    std::variant<std::shared_ptr<const Column>, std::shared_ptr<const Tiles>, std::shared_ptr<const Windows>,
                 std::shared_ptr<const Ragged>, std::shared_ptr<const Slices>, std::shared_ptr<const EventCounts>,
                 std::shared_ptr<const EventItems>>;

[[nodiscard]] std::int64_t rows_of(const AnyColumn& column) noexcept;
[[nodiscard]] std::size_t row_bytes_of(const AnyColumn& column) noexcept;

// Joins all rows of the first, then of the second, and so on. Throws std::invalid_argument if they do not fit together.
[[nodiscard]] AnyColumn concat(std::span<const AnyColumn> columns);

}  // namespace memload
