// The reader of columns whose rows are one run of bytes each.
#pragma once

#include <memory>
#include <optional>

#include "cast/affine.h"
#include "cast/cast.h"
#include "cast/mover.h"
#include "core/columns/column.h"
#include "core/readers/field_reader.h"

namespace memload {

class PlainReader final : public FieldReader {
 public:
  // affine: the constants of the cast, if it has any. Element e of a row is the e-th element of the rule.
  // images: those of a row, whose pixels change places; they need a cast. Throws std::invalid_argument if a row is not
  // a whole number of elements and images, or if the cast has no implementation.
  PlainReader(std::shared_ptr<const Column> column, const std::optional<CastRule>& cast, Isa isa, Store store,
              const Affine* affine = nullptr, const std::optional<Images>& images = std::nullopt);

  [[nodiscard]] std::int64_t rows() const noexcept override { return column_->rows(); }
  [[nodiscard]] bool draws() const noexcept override { return draws_.has_value(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept override { return column_->row_bytes(); }
  [[nodiscard]] std::size_t out_row_bytes() const noexcept { return out_row_bytes_; }
  [[nodiscard]] Files files() const noexcept override;
  [[nodiscard]] std::size_t workspace_bytes() const noexcept override;
  [[nodiscard]] std::size_t bound(std::size_t rows) const override { return batch_bytes(rows, out_row_bytes_); }
  [[nodiscard]] std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows, Seeds seeds) const override;
  void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
            Filled& found) const override;
  [[nodiscard]] std::size_t edge(const FieldPlan& plan, std::size_t at) const noexcept override;
  void visit(std::span<const std::int64_t> rows, const Stored& each) const override;
  void visit_storages(const std::function<void(const Storage&)>& each) const override;

 private:
  class Part;

  void fill_by(const Mover& mover, const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end,
               const ColdReads& cold, Filled& found) const;
  void fill_staged(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                   Filled& found) const;
  // The stored elements of a row that these of its result are made of, and what lies between them.
  struct StoredPart {
    std::size_t first;
    std::size_t elements;
  };
  [[nodiscard]] StoredPart stored(const ResizeDraw& draw, std::size_t first, std::size_t elements) const noexcept;
  [[nodiscard]] std::size_t bytes_in(std::span<const ResizeDraw> draws) const noexcept;
  [[nodiscard]] bool large() const noexcept { return column_->row_bytes() > kLargeRow; }
  // Whether images are resized whose rows are read past the page cache, and are too large for one read: the reads come
  // together in the workspace.
  [[nodiscard]] bool staged() const noexcept;

  std::shared_ptr<const Column> column_;
  std::optional<DrawRule> draws_;
  ImageShape shape_{};                        // of images, if there are any
  std::unique_ptr<const ImageCast> images_;   // before what borrows it
  std::unique_ptr<const Resizer> resizer_;    // likewise; of images that are resized
  std::unique_ptr<const AffineCast> affine_;  // likewise
  std::size_t in_size_;
  std::size_t out_size_;  // bytes per element; 1 and 1 for a copy
  Mover mover_;
  std::size_t out_row_bytes_;
  bool joins_ = false;       // rows that lie one behind the other are moved as one
  bool past_cache_ = false;  // some storage is always read so
  std::size_t out_run_ = 0;  // output of a run of such: of a row, or of a part of it if it is larger than one read
};

}  // namespace memload
