// Gathers of rows that differ in length, outside of a pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/columns/any_column.h"
#include "core/columns/event_items.h"
#include "core/columns/ragged.h"

namespace memload {

// Whether the rows of a column differ in length.
[[nodiscard]] bool differs_in_length(const AnyColumn& column) noexcept;

// Copies the items of these rows of such a column to `out`, as a batch has them, on the calling thread. Throws
// std::out_of_range, ReadError, and std::invalid_argument if the items do not fill `out` exactly. `held` is that of
// Storage::require().
void gather_items(const AnyColumn& column, std::span<const std::int64_t> rows, std::span<std::byte> out,
                  bool held = true);

// Works as the column's lengths(), and throws std::out_of_range for a row that does not exist.
void checked_lengths(const Ragged& ragged, std::span<const std::int64_t> rows, std::span<std::int64_t> out);
void checked_lengths(const EventItems& events, std::span<const std::int64_t> rows, std::span<std::int64_t> out);

}  // namespace memload
