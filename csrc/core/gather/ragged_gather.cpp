#include "core/gather/ragged_gather.h"

#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "cast/draws.h"
#include "core/base/fault_guard.h"
#include "core/base/memory.h"
#include "core/gather/make_reader.h"
#include "core/readers/ragged_plan.h"

namespace memload {
namespace {

void check_rows(std::span<const std::int64_t> rows, std::int64_t count) {
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= count) {
      throw std::out_of_range("row " + std::to_string(row) + " is not one of the " + std::to_string(count) + " rows");
    }
  }
}

std::size_t item_bytes_of(const AnyColumn& column) {
  if (std::holds_alternative<std::shared_ptr<const EventItems>>(column)) return EventItems::kItemBytes;
  return std::get<std::shared_ptr<const Ragged>>(column)->item_bytes();
}

}  // namespace

bool differs_in_length(const AnyColumn& column) noexcept {
  return std::holds_alternative<std::shared_ptr<const Ragged>>(column) ||
         std::holds_alternative<std::shared_ptr<const EventItems>>(column);
}

void gather_items(const AnyColumn& column, std::span<const std::int64_t> rows, std::span<std::byte> out, bool held) {
  install_fault_handler();
  check_rows(rows, rows_of(column));
  const auto reader = make_reader({column, std::nullopt}, Isa::scalar, Store::cached);
  reader->visit(
      rows, [held](const Storage& storage, const std::byte* at, std::size_t n) { storage.require(at, n, -1, held); });
  std::vector<std::uint64_t> seeds(reader->draws() ? rows.size() : 0);
  for (std::size_t i = 0; i < seeds.size(); ++i) seeds[i] = seed_of_row(0, rows[i]);
  const auto plan = reader->plan(rows, seeds);
  const std::size_t bytes = static_cast<std::size_t>(plan->outputs[0].rows) * item_bytes_of(column);
  if (bytes != out.size()) {
    throw std::invalid_argument(std::to_string(rows.size()) + " rows of " + std::to_string(bytes) +
                                " bytes in all do not fill " + std::to_string(out.size()) + " bytes");
  }
  Filled found;
  const HugeMemory workspace(reader->workspace_bytes());
  HugeMemory memory;
  if (reader->files().past_cache) memory = HugeMemory(FieldReader::kScratch);
  const ColdReads cold{.memory = {memory.data(), memory.size()}, .workspace = {workspace.data(), workspace.size()}};
  reader->fill(*plan, out.data(), 0, static_cast<const ItemPlan&>(*plan).values_work, cold, found);
}

void checked_lengths(const Ragged& ragged, std::span<const std::int64_t> rows, std::span<std::int64_t> out) {
  install_fault_handler();
  check_rows(rows, ragged.rows());
  ragged.lengths(rows, out);
}

void checked_lengths(const EventItems& events, std::span<const std::int64_t> rows, std::span<std::int64_t> out) {
  check_rows(rows, events.rows());
  events.lengths(rows, out);
}

}  // namespace memload
