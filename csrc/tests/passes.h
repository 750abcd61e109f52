// What tests of passes need: plans that own their rows, and columns whose every byte tells where it came from.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/pass/plan_queue.h"
#include "tests/fixtures.h"

namespace memload::test {

using ColumnPtr = std::shared_ptr<const Column>;
using Indices = std::vector<std::int64_t>;

// Far beyond what any batch takes, far below CTest's limit.
constexpr std::chrono::milliseconds kPatience{20'000};

inline Rows rows_of(Indices indices) {
  const auto owner = std::make_shared<Indices>(std::move(indices));
  return {owner, *owner};
}

inline ColumnPtr numbered(std::size_t rows, std::size_t row_bytes, std::size_t salt = 0) {
  return dense(in_memory(pattern_bytes(rows * row_bytes, salt)), row_bytes);
}

}  // namespace memload::test
