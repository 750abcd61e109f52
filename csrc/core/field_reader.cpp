#include "core/field_reader.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/column.h"
#include "core/plain_reader.h"
#include "core/ragged_reader.h"
#include "core/ragged_tile_reader.h"
#include "core/tile_reader.h"
#include "core/windows.h"

namespace memload {
namespace {

constexpr std::size_t kLargestBatch = std::size_t{1} << 56;  // more than any address space; sums of such do not wrap

struct MakeReader {
  const std::optional<CastRule>& cast;
  const Affine* affine;
  Isa isa;
  Store store;

  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Column>& column) const {
    return std::make_unique<PlainReader>(column, cast, isa, store, affine);
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Ragged>& ragged) const {
    check_no_constants();
    RaggedForm form(ragged, cast, isa, store);
    if (ragged->decodes()) return std::make_unique<RaggedTileReader>(std::move(form));
    return std::make_unique<RaggedReader>(std::move(form));
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Tiles>& tiles) const {
    check_no_constants();
    return std::make_unique<TileReader>(tiles, cast, isa, store);
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Windows>& windows) const {
    return std::make_unique<WindowReader>(windows, std::visit(*this, windows->frames()));
  }

  void check_no_constants() const {
    if (affine != nullptr)
      throw std::invalid_argument("a cast with constants is of rows that are one run of bytes each");
  }
};

template <class Kind>
bool is(const AnyColumn& column) {
  return std::holds_alternative<std::shared_ptr<const Kind>>(column);
}

// Rows that lie in place, as a part of a column whose other rows lie inside tiles.
AnyColumn as_tiles(const AnyColumn& column) {
  if (!is<Column>(column)) return column;
  return std::make_shared<const Tiles>(*std::get<std::shared_ptr<const Column>>(column));
}

template <class Kind>
AnyColumn concat_kind(std::span<const AnyColumn> columns) {
  std::vector<std::shared_ptr<const Kind>> members;
  for (const AnyColumn& column : columns) {
    if (!is<Kind>(column)) {
      throw std::invalid_argument("columns that are stored in different ways cannot be one column");
    }
    members.push_back(std::get<std::shared_ptr<const Kind>>(column));
  }
  return std::make_shared<const Kind>(Kind::concat(members));
}

}  // namespace

std::size_t batch_bytes(std::size_t rows, std::size_t row_bytes) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > kLargestBatch) {
    throw std::length_error("a batch of " + std::to_string(rows) + " rows is larger than any memory");
  }
  return bytes;
}

std::unique_ptr<const FieldReader> make_reader(const FieldSpec& field, Isa isa, Store store) {
  return std::visit(MakeReader{field.cast, field.affine.get(), isa, store}, field.column);
}

std::int64_t rows_of(const AnyColumn& column) noexcept {
  return std::visit([](const auto& kind) { return kind->rows(); }, column);
}

std::size_t row_bytes_of(const AnyColumn& column) noexcept {
  return std::visit([](const auto& kind) { return kind->row_bytes(); }, column);
}

AnyColumn concat(std::span<const AnyColumn> columns) {
  if (columns.empty()) throw std::invalid_argument("concat needs at least one column");
  if (std::any_of(columns.begin(), columns.end(), is<Tiles>)) {
    std::vector<AnyColumn> alike(columns.size());
    std::transform(columns.begin(), columns.end(), alike.begin(), as_tiles);
    return concat_kind<Tiles>(alike);
  }
  return std::visit([columns]<class Kind>(const std::shared_ptr<const Kind>&) { return concat_kind<Kind>(columns); },
                    columns.front());
}

}  // namespace memload
