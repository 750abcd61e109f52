#include "core/readers/plain_reader.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/fault_guard.h"
#include "core/io/direct_file.h"
#include "core/readers/planned_reads.h"
#include "core/readers/run_copier.h"

namespace memload {
namespace {

constexpr std::size_t kAhead = 8;  // rows asked for ahead of the one being copied

struct PlainPlan : FieldPlan {
  std::span<const std::int64_t> rows;
  std::vector<ImageDraw> draws;  // of each row, if there are any

  [[nodiscard]] ImageDraw draw(std::size_t row) const { return draws.empty() ? ImageDraw{} : draws[row]; }
};

const PlainPlan& plain_plan(const FieldPlan& plan) { return static_cast<const PlainPlan&>(plan); }

}  // namespace

// Bytes [begin, end) of what the field has in the slot; of images, as many in the order in which they are stored.
class PlainReader::Part {
 public:
  Part(const PlainReader& field, const PlainPlan& plan, std::byte* out, std::size_t begin, std::size_t end,
       const ColdReads& cold, Filled& found)
      : field_(field), plan_(plan), out_(out), begin_(begin), end_(end), copier_(field.mover_, cold, found) {}

  // Runs under the fault guard: owns nothing, throws nothing.
  void copy() noexcept {
    const Column& column = *field_.column_;
    const std::size_t row_bytes = field_.out_row_bytes_;
    std::size_t at = begin_;
    std::size_t inside = at % row_bytes;
    for (std::size_t i = at / row_bytes; at < end_; ++i) {
      current_ = i;
      if (i + kAhead < plan_.rows.size()) {
        RunCopier::prefetch(column.address(plan_.rows[i + kAhead]), column.row_bytes());
      }
      const std::size_t bytes = std::min(row_bytes - inside, end_ - at);
      const ImageDraw draw = plan_.draw(i);
      const StoredPart part = field_.stored(draw, inside / field_.out_size_, bytes / field_.out_size_);
      const Extent extent = column.at(plan_.rows[i]);
      copier_.copy(*extent.segment->storage, {extent.data + part.first * field_.in_size_, out_ + at - inside,
                                              part.elements, column.row_bytes(), part.first, draw});
      at += bytes;
      inside = 0;
    }
  }

  // Of one run, by the mapping.
  void copy(const PlannedRun& run) noexcept {
    current_ = run.row;
    copier_.copy_mapped(*run.storage,
                        {run.src, run.row_out, run.elements, field_.column_->row_bytes(), run.first, run.draw});
  }

  // The runs of this part. Rows are read whole, also where images are cropped, so that a cache has them for any crop.
  [[nodiscard]] std::vector<PlannedRun> runs() const {
    const std::size_t row_bytes = field_.out_row_bytes_;
    const std::size_t of_run = PlannedReads::kLargestRun / field_.in_size_;
    std::vector<PlannedRun> found;
    for (std::size_t at = begin_; at < end_;) {
      const std::size_t row = at / row_bytes;
      const std::size_t inside = at % row_bytes;
      const std::size_t bytes = std::min(row_bytes - inside, end_ - at);
      const ImageDraw draw = plan_.draw(row);
      const Extent extent = field_.column_->at(plan_.rows[row]);
      const StoredPart part = bytes == row_bytes
                                  ? StoredPart{0, field_.column_->row_bytes() / field_.in_size_}
                                  : field_.stored(draw, inside / field_.out_size_, bytes / field_.out_size_);
      for (std::size_t first = part.first; first < part.first + part.elements;) {
        const std::size_t stop = std::min((first / of_run + 1) * of_run, part.first + part.elements);
        found.push_back({extent.segment->storage.get(), extent.data + first * field_.in_size_, out_ + at - inside,
                         stop - first, first, row, draw});
        first = stop;
      }
      at += bytes;
    }
    return found;
  }

  [[noreturn]] void fail(const void* address) const {
    const Extent extent = field_.column_->at(plan_.rows[current_]);
    throw extent.segment->storage->unreadable(extent.row_in_segment, address);
  }

 private:
  const PlainReader& field_;
  const PlainPlan& plan_;
  std::byte* out_;
  std::size_t begin_;
  std::size_t end_;
  RunCopier copier_;
  volatile std::size_t current_ = 0;  // read after a jump out of copy()
};

PlainReader::PlainReader(std::shared_ptr<const Column> column, const std::optional<CastRule>& cast, Isa isa,
                         Store store, const Affine* affine, const std::optional<Images>& images)
    : column_(std::move(column)),
      images_(cast && images ? std::make_unique<ImageCast>(*cast, affine, images->shape, isa, store) : nullptr),
      affine_(cast && affine != nullptr && !images
                  ? std::make_unique<AffineCast>(cast->from, cast->to, *affine, isa, store)
                  : nullptr),
      in_size_(cast ? size_of(cast->from) : 1),
      out_size_(cast ? size_of(cast->to) : 1),
      mover_(images_   ? Mover(*images_, in_size_, out_size_)
             : affine_ ? Mover(*affine_, in_size_, out_size_)
                       : Mover(cast ? find_cast(*cast, isa, store) : find_copy(isa, store), in_size_, out_size_)) {
  if (column_->row_bytes() % in_size_ != 0) {
    throw std::invalid_argument("a row of " + std::to_string(column_->row_bytes()) +
                                " bytes is not a whole number of elements of " + std::to_string(in_size_));
  }
  std::size_t elements = column_->row_bytes() / in_size_;
  if (images_) {
    if (elements % images_->stored_elements() != 0) {
      throw std::invalid_argument("a row of " + std::to_string(elements) +
                                  " elements is not a whole number of images of " +
                                  std::to_string(images_->stored_elements()) + " elements");
    }
    elements = elements / images_->stored_elements() * images_->crop_elements();
    shape_ = images->shape;
    draws_ = images->draws;
  }
  out_row_bytes_ = elements * out_size_;
  out_run_ = images_ ? out_row_bytes_ : std::min(out_row_bytes_, PlannedReads::kLargestRun / in_size_ * out_size_);
  visit_storages([this](const Storage& storage) { past_cache_ = past_cache_ || storage.past_cache(); });
}

PlainReader::StoredPart PlainReader::stored(const ImageDraw& draw, std::size_t first,
                                            std::size_t elements) const noexcept {
  if (!images_) return {first, elements};
  const std::size_t begin = images_->stored_place(draw, first);
  return {begin, images_->stored_place(draw, first + elements - 1) + 1 - begin};
}

FieldReader::Files PlainReader::files() const noexcept {
  Files files;
  files.past_cache = past_cache_;
  for (const Segment& segment : column_->segments()) {
    if (segment.storage->past_cache()) continue;
    const bool mapped = segment.storage->mapped();
    files.mapped = files.mapped || mapped;
    bool& such_rows = large() ? files.large_rows : files.small_rows;
    such_rows = such_rows || mapped;
    files.knows_residency = files.knows_residency && segment.storage->knows_residency();
  }
  return files;
}

std::unique_ptr<const FieldPlan> PlainReader::plan(std::span<const std::int64_t> rows, Seeds seeds) const {
  auto plan = std::make_unique<PlainPlan>();
  plan->bytes = plan->work = bound(rows.size());
  plan->bytes_in = images_ && !past_cache_ ? plan->bytes / out_size_ * in_size_ : rows.size() * column_->row_bytes();
  plan->in_order = images_ == nullptr;
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  plan->rows = rows;
  if (draws_) {
    plan->draws.reserve(rows.size());
    for (const std::uint64_t seed : seeds) plan->draws.push_back(draw_of(*draws_, shape_, seed));
  }
  return plan;
}

void PlainReader::fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled& found) const {
  if (past_cache_) return fill_past_cache(plan, out, begin, end, cold, found);
  Part part(*this, plain_plan(plan), out, begin, end, cold, found);
  const void* const fault = guarded([&part]() noexcept { part.copy(); });
  if (fault != nullptr) part.fail(fault);
}

// What the storages' caches hold, and reads past the page cache, many at once; then what has to come through mappings.
void PlainReader::fill_past_cache(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end,
                                  const ColdReads& cold, Filled& found) const {
  Part part(*this, plain_plan(plan), out, begin, end, cold, found);
  const std::vector<PlannedRun> runs = part.runs();
  std::vector<PlannedRun> mapped;
  std::vector<PlannedRun> planned;
  for (const PlannedRun& run : runs) (run.storage->past_cache() ? planned : mapped).push_back(run);
  PlannedReads(mover_, cold, found).copy(planned, mapped);
  for (const PlannedRun& run : mapped) {
    const void* const fault = guarded([&]() noexcept { part.copy(run); });
    if (fault != nullptr) part.fail(fault);
    // The page in which a file ends after it was cut shows zeros, and raises nothing.
    const std::byte* const end = run.storage->past_cache() ? run.storage->end_if_cut() : nullptr;
    if (end != nullptr && run.src + run.elements * in_size_ > end) part.fail(std::max(run.src, end));
  }
}

std::size_t PlainReader::edge(const FieldPlan& plan, std::size_t at) const noexcept {
  if (past_cache_ && out_row_bytes_ != 0) {
    const std::size_t row = at / out_row_bytes_ * out_row_bytes_;
    const std::size_t nearest = row + (at - row + out_run_ / 2) / out_run_ * out_run_;
    return std::min({nearest, row + out_row_bytes_, plan.work});
  }
  if (!large() || DirectFile::room_for(column_->row_bytes()) > kScratch) return at;
  const std::size_t nearest = (at + out_row_bytes_ / 2) / out_row_bytes_;
  return std::min(nearest * out_row_bytes_, plan.work);
}

void PlainReader::visit(std::span<const std::int64_t> rows, const Stored& each) const {
  for (const std::int64_t row : rows) {
    const Extent extent = column_->at(row);
    each(*extent.segment->storage, extent.data, column_->row_bytes());
  }
}

void PlainReader::visit_storages(const std::function<void(const Storage&)>& each) const {
  for (const Segment& segment : column_->segments()) each(*segment.storage);
}

}  // namespace memload
