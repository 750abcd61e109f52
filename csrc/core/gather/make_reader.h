// The specification of a field, and the choice of the reader that its column needs.
#pragma once

#include <memory>
#include <optional>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/mover.h"
#include "core/columns/any_column.h"
#include "core/readers/field_reader.h"
#include "core/readers/tile_cache.h"

namespace memload {

// One field of a batch: where its rows lie and what becomes of their elements. Without a cast, bytes are copied.
struct FieldSpec {
  AnyColumn column;
  std::optional<CastRule> cast;
  std::shared_ptr<const Affine> affine{};  // the constants of a cast that has any
  std::optional<Images> images{};          // whose pixels change places
  std::shared_ptr<TileCache> kept{};       // where decoded tiles stay for further batches; null: nowhere
};

// Makes the reader of a field of any kind. Throws std::invalid_argument if the cast has no implementation, if it has
// constants or images while the rows are not one run of bytes each, or if a row is not a whole number of elements.
[[nodiscard]] std::unique_ptr<const FieldReader> make_reader(const FieldSpec& field, Isa isa, Store store);

}  // namespace memload
