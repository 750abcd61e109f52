// Gathers of rows that differ in length, outside of a pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/columns/ragged.h"

namespace memload {

// Copies the items of these rows to `out`, as a batch has them, on the calling thread. Throws std::out_of_range,
// ReadError, and std::invalid_argument if the items do not fill `out` exactly.
void gather_items(const std::shared_ptr<const Ragged>& ragged, std::span<const std::int64_t> rows,
                  std::span<std::byte> out);

// Works as Ragged::lengths(), and throws std::out_of_range for a row that does not exist.
void checked_lengths(const Ragged& ragged, std::span<const std::int64_t> rows, std::span<std::int64_t> out);

}  // namespace memload
