#include "core/gather/gather.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/base/fault_guard.h"

namespace memload {
namespace {

// With the padding behind a field. Throws std::length_error if no memory is so large.
std::size_t sum_of(std::size_t bytes, std::size_t more) {
  return batch_bytes(1, bytes + round_up(more, Gather::kAlign));
}

}  // namespace

std::size_t BatchLayout::bytes_in() const noexcept {
  std::size_t sum = 0;
  for (const Share& share : shares) sum += share.plan->bytes_in;
  return sum;
}

std::size_t BatchLayout::bytes_out() const noexcept {
  std::size_t sum = 0;
  for (const Share& share : shares) sum += share.plan->bytes;
  return sum;
}

Gather::Gather(const std::vector<FieldSpec>& fields, Isa isa, Store store) : store_(store) {
  std::unordered_set<const Storage*> seen;
  if (fields.empty()) throw std::invalid_argument("a batch needs at least one field");
  for (const FieldSpec& field : fields) {
    fields_.push_back({make_reader(field, isa, store), {}});
    const FieldReader& reader = *fields_.back().reader;
    if (reader.rows() != rows()) {
      throw std::invalid_argument("fields differ in length: " + std::to_string(rows()) + " and " +
                                  std::to_string(reader.rows()) + " rows");
    }
    draws_ = draws_ || reader.draws();
    row_bytes_ += reader.row_bytes();
    const FieldReader::Files files = fields_.back().files = reader.files();
    files_.past_cache = files_.past_cache || files.past_cache;
    files_.mapped = files_.mapped || files.mapped;
    files_.large_rows = files_.large_rows || files.large_rows;
    files_.small_rows = files_.small_rows || files.small_rows;
    files_.knows_residency = files_.knows_residency && files.knows_residency;
    if (!files.mapped && !files.past_cache) continue;
    reader.visit_storages([&](const Storage& storage) {
      mirrors_ = mirrors_ || storage.mirror() != nullptr;
      if (storage.mapped() && seen.insert(&storage).second) mapped_.push_back(storage.shared_from_this());
    });
  }
}

std::size_t Gather::workspace_bytes() const noexcept {
  std::size_t most = 0;
  for (const Field& field : fields_) most = std::max(most, field.reader->workspace_bytes());
  return most;
}

std::size_t Gather::slot_bytes(std::size_t rows) const {
  std::size_t bytes = 0;
  for (const auto& [reader, files] : fields_) bytes = sum_of(bytes, reader->bound(rows));
  return bytes;
}

BatchLayout Gather::layout(std::span<const std::int64_t> rows, std::uint64_t pass_key) const {
  BatchLayout layout;
  std::vector<std::uint64_t> seeds(draws_ ? rows.size() : 0);
  for (std::size_t i = 0; i < seeds.size(); ++i) seeds[i] = seed_of_row(pass_key, rows[i]);
  layout.shares.reserve(fields_.size());
  for (const auto& [reader, files] : fields_) {
    layout.shares.push_back({reader->plan(rows, seeds), layout.bytes, layout.work});
    const FieldPlan& plan = *layout.shares.back().plan;
    layout.bytes = sum_of(layout.bytes, plan.bytes);
    layout.work = sum_of(layout.work, plan.work);
  }
  return layout;
}

std::vector<Output> Gather::outputs(const BatchLayout& layout) const {
  std::vector<Output> outputs;
  outputs.reserve(fields_.size());
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const BatchLayout::Share& share = layout.shares[f];
    for (std::size_t k = 0; k < fields_[f].reader->outputs(); ++k) {
      outputs.push_back({share.offset + share.plan->outputs[k].offset, share.plan->outputs[k].rows});
    }
  }
  return outputs;
}

Filled Gather::fill(const BatchLayout& layout, std::byte* slot, std::size_t begin, std::size_t end,
                    const ColdReads& cold) const {
  Filled found;
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const BatchLayout::Share& share = layout.shares[f];
    const std::size_t from = std::max(begin, share.work);
    const std::size_t to = std::min(end, share.work + share.plan->work);
    if (from >= to) continue;
    fields_[f].reader->fill(*share.plan, slot + share.offset, from - share.work, to - share.work, cold, found);
  }
  if (store_ == Store::streaming) store_fence();
  return found;
}

std::size_t Gather::row_edge(const BatchLayout& layout, std::size_t at) const noexcept {
  const auto next =
      std::upper_bound(layout.shares.begin(), layout.shares.end(), at,
                       [](std::size_t work, const BatchLayout::Share& share) { return work < share.work; });
  if (next == layout.shares.begin()) return at;
  const BatchLayout::Share& share = *std::prev(next);
  const FieldReader& reader = *fields_[static_cast<std::size_t>(next - layout.shares.begin()) - 1].reader;
  return share.work + reader.edge(*share.plan, at - share.work);
}

void Gather::check_file(std::size_t number, std::span<const std::int64_t> rows) const {
  if (mapped_.empty()) return;
  if (mapped_[number % mapped_.size()]->end_if_cut() != nullptr) check_rows(rows);
}

void Gather::check_files() const {
  if (mapped_.size() < 2) return;  // its turn came after every piece
  for (const auto& storage : mapped_) storage->check_whole();
}

void Gather::check_fetched(std::span<const std::int64_t> rows, bool held) const {
  if (!mirrors_) return;
  for (const Field& field : fields_) {
    for (const std::int64_t& row : rows) {
      field.reader->visit({&row, 1}, [row, held](const Storage& storage, const std::byte* at, std::size_t n) {
        storage.require(at, n, row, held);
      });
    }
  }
}

void Gather::visit(std::span<const std::int64_t> rows, const FieldReader::Stored& each) const {
  for (const Field& field : fields_) field.reader->visit(rows, each);
}

void Gather::check_rows(std::span<const std::int64_t> rows) const {
  for (const Field& field : fields_) {
    if (!field.files.mapped && !field.files.past_cache) continue;
    const Storage* last = nullptr;
    const std::byte* end = nullptr;  // of what is left of the last storage, if it was cut
    for (const std::int64_t& row : rows) {
      field.reader->visit({&row, 1}, [&](const Storage& storage, const std::byte* at, std::size_t n) {
        if (std::exchange(last, &storage) != &storage) end = storage.end_if_cut();
        if (end != nullptr && at + n > end) throw storage.unreadable(row, std::max(at, end));
      });
    }
  }
}

void Gather::advise(std::span<const std::int64_t> rows, bool small_only) const {
  for (const auto& [reader, files] : fields_) {
    if (small_only && files.large_rows) continue;
    const Storage* storage = nullptr;
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    const auto ask = [&] {
      if (storage != nullptr) storage->advise(begin, static_cast<std::size_t>(end - begin));
    };
    const auto take = [&](const Storage& where, const std::byte* at, std::size_t n) {
      if (&where == storage && at >= begin && at <= end) {
        end = std::max(end, at + n);
        return;
      }
      ask();
      storage = &where;
      begin = at;
      end = at + n;
    };
    reader->visit(rows, std::ref(take));
    ask();
  }
}

void Gather::read_blocks(std::span<const std::int64_t> rows) const {
  for (const auto& [reader, files] : fields_) {
    reader->visit(rows, [](const Storage& storage, const std::byte* at, std::size_t n) { storage.read_blocks(at, n); });
  }
}

void Gather::expect_random_reads(bool blocks) const {
  for (const auto& [reader, files] : fields_) {
    reader->visit_storages([blocks](const Storage& storage) { storage.expect_random_reads(blocks); });
  }
}

bool Gather::resident(std::int64_t row) const {
  bool all = true;
  for (const auto& [reader, files] : fields_) {
    reader->visit({&row, 1}, [&all](const Storage& storage, const std::byte* at, std::size_t n) {
      all = all && (n == 0 || storage.resident(at));
    });
  }
  return all;
}

void gather_rows(const FieldSpec& field, std::span<const std::int64_t> rows, std::span<std::byte> out, Isa isa,
                 bool held) {
  install_fault_handler();
  const Gather gather({field}, isa, Store::cached);
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= gather.rows()) {
      throw std::out_of_range("row " + std::to_string(row) + " is not one of the " + std::to_string(gather.rows()) +
                              " rows");
    }
  }
  gather.check_fetched(rows, held);
  const BatchLayout layout = gather.layout(rows);
  const std::size_t bytes = layout.shares.front().plan->bytes;
  if (bytes != out.size()) {
    throw std::invalid_argument(std::to_string(rows.size()) + " rows of " + std::to_string(bytes) +
                                " bytes in all do not fill " + std::to_string(out.size()) + " bytes");
  }
  const HugeMemory workspace(gather.workspace_bytes());
  HugeMemory memory;
  if (gather.files().past_cache) memory = HugeMemory(Gather::kScratch);
  ColdReads cold;
  cold.workspace = {workspace.data(), workspace.size()};
  cold.memory = {memory.data(), memory.size()};
  gather.fill(layout, out.data(), 0, layout.work, cold);
  gather.check_rows(rows);
}

}  // namespace memload
