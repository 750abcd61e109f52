#include "core/gather/ragged_gather.h"

#include <optional>
#include <stdexcept>
#include <string>

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

}  // namespace

void gather_items(const std::shared_ptr<const Ragged>& ragged, std::span<const std::int64_t> rows,
                  std::span<std::byte> out) {
  install_fault_handler();
  check_rows(rows, ragged->rows());
  const auto reader = make_reader({ragged, std::nullopt}, Isa::scalar, Store::cached);
  reader->visit(rows, [](const Storage& storage, const std::byte* at, std::size_t n) { storage.require(at, n, -1); });
  const auto plan = reader->plan(rows, {});
  const std::size_t bytes = static_cast<std::size_t>(plan->outputs[0].rows) * ragged->item_bytes();
  if (bytes != out.size()) {
    throw std::invalid_argument(std::to_string(rows.size()) + " rows of " + std::to_string(bytes) +
                                " bytes in all do not fill " + std::to_string(out.size()) + " bytes");
  }
  Filled found;
  const HugeMemory workspace(reader->workspace_bytes());
  HugeMemory memory;
  if (reader->files().past_cache) memory = HugeMemory(FieldReader::kScratch);
  const ColdReads cold{.memory = {memory.data(), memory.size()}, .workspace = {workspace.data(), workspace.size()}};
  reader->fill(*plan, out.data(), 0, static_cast<const RaggedPlan&>(*plan).values_work, cold, found);
}

void checked_lengths(const Ragged& ragged, std::span<const std::int64_t> rows, std::span<std::int64_t> out) {
  install_fault_handler();
  check_rows(rows, ragged.rows());
  ragged.lengths(rows, out);
}

}  // namespace memload
