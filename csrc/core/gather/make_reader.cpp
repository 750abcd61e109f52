#include "core/gather/make_reader.h"

#include <stdexcept>
#include <utility>

#include "core/columns/column.h"
#include "core/readers/event_reader.h"
#include "core/readers/plain_reader.h"
#include "core/readers/ragged_reader.h"
#include "core/readers/ragged_tile_reader.h"
#include "core/readers/slice_reader.h"
#include "core/readers/tile_reader.h"
#include "core/readers/window_reader.h"

namespace memload {
namespace {

struct MakeReader {
  const std::optional<CastRule>& cast;
  const Affine* affine;
  const std::optional<Images>& images;
  Isa isa;
  Store store;
  const std::shared_ptr<TileCache>& kept;

  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Column>& column) const {
    return std::make_unique<PlainReader>(column, cast, isa, store, affine, images);
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Ragged>& ragged) const {
    check_plain();
    RaggedForm form(ragged, cast, isa, store);
    if (ragged->decodes()) return std::make_unique<RaggedTileReader>(std::move(form));
    return std::make_unique<RaggedReader>(std::move(form));
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Tiles>& tiles) const {
    check_plain();
    return std::make_unique<TileReader>(tiles, cast, isa, store, kept);
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Windows>& windows) const {
    if (windows->shares() && images && images->draws) {
      throw std::invalid_argument("windows that share frames have no draws of their own");
    }
    return std::make_unique<WindowReader>(windows, std::visit(*this, windows->frames()));
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const Slices>& slices) const {
    if (!slices->blends()) return std::make_unique<SliceReader>(slices, std::visit(*this, slices->frames()));
    check_no_images();
    auto frames = make_reader({.column = slices->frames(), .cast = std::nullopt, .kept = kept}, isa, Store::cached);
    return std::make_unique<BlendReader>(slices, std::move(frames), cast, affine, isa, store);
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const EventCounts>& counts) const {
    check_no_images();
    return std::make_unique<CountReader>(counts, cast, affine, isa, store);
  }
  std::unique_ptr<const FieldReader> operator()(const std::shared_ptr<const EventItems>& events) const {
    check_plain();
    return std::make_unique<EventReader>(events, cast, isa, store);
  }

  void check_no_images() const {
    if (images) throw std::invalid_argument("samples that are computed are no images whose pixels change places");
  }
  void check_plain() const {
    if (affine != nullptr || images)
      throw std::invalid_argument("a cast with constants or of images is of rows that are one run of bytes each");
  }
};

}  // namespace

std::unique_ptr<const FieldReader> make_reader(const FieldSpec& field, Isa isa, Store store) {
  return std::visit(MakeReader{field.cast, field.affine.get(), field.images, isa, store, field.kept}, field.column);
}

}  // namespace memload
