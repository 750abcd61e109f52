#include "python/block_rows.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace memload::python {
namespace {

namespace py = pybind11;

// Numbers of blocks, by their mirror's object of Python.
using Found = std::map<void*, std::vector<std::int64_t>>;

void add(Found& found, const Storage& storage, std::size_t offset, std::size_t bytes) {
  const Mirror* const mirror = storage.mirror();
  if (mirror == nullptr || bytes == 0) return;
  const std::uint64_t first = mirror->table->files()[mirror->file].first;
  const std::uint64_t size = mirror->table->block_bytes();
  std::vector<std::int64_t>& blocks = found[mirror->handle];
  for (std::uint64_t number = first + offset / size; number <= first + (offset + bytes - 1) / size; ++number) {
    if (blocks.empty() || blocks.back() != static_cast<std::int64_t>(number)) {
      blocks.push_back(static_cast<std::int64_t>(number));
    }
  }
}

OriginBlocks listed(Found found) {
  OriginBlocks all;
  for (auto& [handle, blocks] : found) {
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    all.emplace_back(py::reinterpret_borrow<py::object>(static_cast<PyObject*>(handle)),
                     py::array_t<std::int64_t>(static_cast<py::ssize_t>(blocks.size()), blocks.data()));
  }
  return all;
}

std::vector<FieldSpec> plain(const std::vector<PyColumn>& columns) {
  std::vector<FieldSpec> specs;
  for (const PyColumn& column : columns) specs.push_back({any_column(column), std::nullopt});
  return specs;
}

}  // namespace

BlocksOf::BlocksOf(const std::vector<PyColumn>& columns)
    : gather_(std::make_unique<const Gather>(plain(columns), Isa::scalar, Store::cached)) {}

BlocksOf::BlocksOf(const AnyColumn& column)
    : gather_(
          std::make_unique<const Gather>(std::vector<FieldSpec>{{column, std::nullopt}}, Isa::scalar, Store::cached)) {}

OriginBlocks BlocksOf::of(const Indices& rows) const {
  Found found;
  {
    const std::span<const std::int64_t> numbers = view(rows);
    const WithoutGil released;
    for (const std::int64_t row : numbers) {
      if (row < 0 || row >= gather_->rows()) throw std::out_of_range("row " + std::to_string(row) + " is not there");
    }
    gather_->visit(numbers, [&](const Storage& storage, const std::byte* at, std::size_t n) {
      add(found, storage, static_cast<std::size_t>(at - storage.data()), n);
    });
  }
  return listed(std::move(found));
}

OriginBlocks blocks_of(const Storage& storage, std::size_t offset, std::size_t bytes) {
  Found found;
  add(found, storage, offset, bytes);
  return listed(std::move(found));
}

HeldBlocks::HeldBlocks(OriginBlocks blocks) : blocks_(std::move(blocks)) {
  try {
    for (const auto& [origin, numbers] : blocks_) {
      origin.attr("hold")(numbers);
      ++held_;
    }
  } catch (...) {
    let_go();
    throw;
  }
}

HeldBlocks::~HeldBlocks() { let_go(); }

void HeldBlocks::let_go() noexcept {
  for (; held_ > 0; --held_) {
    try {
      const py::error_scope kept;  // the error that ends the read, if one does
      blocks_[held_ - 1].first.attr("let_go")(blocks_[held_ - 1].second);
    } catch (const std::exception&) {  // pins that stay keep blocks, and nothing else
    }
  }
}

}  // namespace memload::python
