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

struct PlainPlan : FieldPlan {
  std::span<const std::int64_t> rows;
  std::vector<ResizeDraw> draws;  // of each row, if there are any

  [[nodiscard]] ResizeDraw draw(std::size_t row) const { return draws.empty() ? ResizeDraw{} : draws[row]; }
};

const PlainPlan& plain_plan(const FieldPlan& plan) { return static_cast<const PlainPlan&>(plan); }

// Throws std::invalid_argument for draws that are none of images which are resized.
void check_draws(const std::optional<DrawRule>& draws, const Resizer& resizer) {
  if (!draws || !draws->part) throw std::invalid_argument("images that are resized need draws of their parts");
  const ImagePart& part = draws->part->part;
  resizer.check({{part.top, part.left, false}, part.height, part.width});
}

}  // namespace

// Bytes [begin, end) of what the field has in the slot; of images, as many in the order in which they are stored, and
// of images that are resized the rows that begin there.
class PlainReader::Part {
 public:
  Part(const PlainReader& field, const PlainPlan& plan, std::byte* out, std::size_t begin, std::size_t end,
       const ColdReads& cold, Filled& found, const Mover& mover)
      : field_(field),
        plan_(plan),
        out_(out),
        begin_(field.resizer_ ? round_up_to_row(begin) : begin),
        end_(field.resizer_ ? round_up_to_row(end) : end),
        copier_(mover, cold, found) {}

  [[nodiscard]] std::size_t begin() const noexcept { return begin_; }
  [[nodiscard]] std::size_t end() const noexcept { return end_; }

  // Runs under the fault guard: owns nothing, throws nothing.
  void copy() noexcept {
    const Column& column = *field_.column_;
    const std::size_t row_bytes = field_.out_row_bytes_;
    std::size_t at = begin_;
    std::size_t inside = at % row_bytes;
    for (std::size_t i = at / row_bytes; at < end_;) {
      current_ = i;
      const Extent extent = column.at(plan_.rows[i]);
      const std::size_t next = field_.joins_ ? end_of_run(i, extent) : i + 1;
      if (next == i + 1 && i + RunCopier::kAhead < plan_.rows.size()) {
        RunCopier::prefetch(column.address(plan_.rows[i + RunCopier::kAhead]), column.row_bytes());
      }
      const std::size_t bytes = std::min((next - i) * row_bytes - inside, end_ - at);
      const ResizeDraw draw = plan_.draw(i);
      const StoredPart part = field_.stored(draw, inside / field_.out_size_, bytes / field_.out_size_);
      copier_.copy(*extent.segment->storage, {extent.data + part.first * field_.in_size_, out_ + at - inside,
                                              part.elements, column.row_bytes(), part.first, draw});
      at += bytes;
      inside = 0;
      i = next;
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
    const std::size_t of_run =
        field_.resizer_ && !field_.staged() ? field_.column_->row_bytes() : PlannedReads::kLargestRun / field_.in_size_;
    std::vector<PlannedRun> found;
    for (std::size_t at = begin_; at < end_;) {
      const std::size_t row = at / row_bytes;
      const std::size_t inside = at % row_bytes;
      const std::size_t bytes = std::min(row_bytes - inside, end_ - at);
      const ResizeDraw draw = plan_.draw(row);
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

  // Copies runs past the page cache, many at once, and by their mappings what has to come through these.
  void copy(std::span<const PlannedRun> runs, const Mover& mover, const ColdReads& cold, Filled& found) {
    std::vector<PlannedRun> mapped;
    std::vector<PlannedRun> planned;
    for (const PlannedRun& run : runs) (run.storage->past_cache() ? planned : mapped).push_back(run);
    PlannedReads(mover, cold, found).copy(planned, mapped);
    for (const PlannedRun& run : mapped) {
      const void* const fault = guarded([&]() noexcept { copy(run); });
      if (fault != nullptr) fail(fault);
      // The page in which a file ends after it was cut shows zeros, and raises nothing.
      const std::byte* const file_end = run.storage->past_cache() ? run.storage->end_if_cut() : nullptr;
      if (file_end != nullptr && run.src + run.elements * mover.in() > file_end) fail(std::max(run.src, file_end));
    }
  }

  [[noreturn]] void fail(const void* address) const {
    const Extent extent = field_.column_->at(plan_.rows[current_]);
    const std::ptrdiff_t within = static_cast<const std::byte*>(address) - extent.data;
    const std::size_t rows = field_.joins_ && within > 0  // of the run, before the one that cannot be read
                                 ? static_cast<std::size_t>(within) / field_.column_->row_bytes()
                                 : 0;
    throw extent.segment->storage->unreadable(extent.row_in_segment + static_cast<std::int64_t>(rows), address);
  }

 private:
  // The first of the rows after row i that does not lie right behind the one before it, or whose place begins at end_.
  [[nodiscard]] std::size_t end_of_run(std::size_t i, const Extent& extent) const noexcept {
    const Column& column = *field_.column_;
    if (extent.segment->stride != column.row_bytes()) return i + 1;
    const std::size_t end = (end_ + field_.out_row_bytes_ - 1) / field_.out_row_bytes_;
    const auto most = static_cast<std::size_t>(extent.segment->rows - extent.row_in_segment);
    const std::size_t last = std::min(end, i + most);
    const std::int64_t first = column.stored(plan_.rows[i]) - static_cast<std::int64_t>(i);
    for (++i; i < last && column.stored(plan_.rows[i]) == first + static_cast<std::int64_t>(i);) ++i;
    return i;
  }

  [[nodiscard]] std::size_t round_up_to_row(std::size_t at) const noexcept {
    return (at + field_.out_row_bytes_ - 1) / field_.out_row_bytes_ * field_.out_row_bytes_;
  }

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
      images_(cast && images && !images->resize ? std::make_unique<ImageCast>(*cast, affine, images->shape, isa, store)
                                                : nullptr),
      resizer_(cast && images && images->resize
                   ? std::make_unique<Resizer>(resize_job(images->shape, *images->resize, *cast, affine), isa, store)
                   : nullptr),
      affine_(cast && affine != nullptr && !images
                  ? std::make_unique<AffineCast>(cast->from, cast->to, *affine, isa, store)
                  : nullptr),
      in_size_(cast ? size_of(cast->from) : 1),
      out_size_(cast ? size_of(cast->to) : 1),
      mover_(images_    ? Mover(*images_, in_size_, out_size_)
             : resizer_ ? Mover(*resizer_, in_size_, out_size_)
             : affine_  ? Mover(*affine_, in_size_, out_size_)
                        : Mover(cast ? find_cast(*cast, isa, store) : find_copy(isa, store), in_size_, out_size_)) {
  if (column_->row_bytes() % in_size_ != 0) {
    throw std::invalid_argument("a row of " + std::to_string(column_->row_bytes()) +
                                " bytes is not a whole number of elements of " + std::to_string(in_size_));
  }
  std::size_t elements = column_->row_bytes() / in_size_;
  if (images_ || resizer_) {
    const std::size_t of_image = images_ ? images_->stored_elements() : resizer_->stored_elements();
    if (elements == 0 || elements % of_image != 0) {
      throw std::invalid_argument("a row of " + std::to_string(elements) +
                                  " elements is not a whole number of images of " + std::to_string(of_image) +
                                  " elements");
    }
    elements = elements / of_image * (images_ ? images_->crop_elements() : resizer_->out_elements());
    shape_ = images->shape;
    draws_ = images->draws;
  }
  if (resizer_) check_draws(draws_, *resizer_);
  out_row_bytes_ = elements * out_size_;
  out_run_ =
      images_ || resizer_ ? out_row_bytes_ : std::min(out_row_bytes_, PlannedReads::kLargestRun / in_size_ * out_size_);
  joins_ = !images_ && !resizer_ && !affine_ && !large();
  visit_storages([this](const Storage& storage) { past_cache_ = past_cache_ || storage.past_cache(); });
}

bool PlainReader::staged() const noexcept {
  return resizer_ && past_cache_ && DirectFile::room_for(column_->row_bytes()) > kScratch;
}

std::size_t PlainReader::workspace_bytes() const noexcept {
  if (!resizer_) return 0;
  return round_up(resizer_->scratch_bytes(), kAlign) + (staged() ? column_->row_bytes() : 0);
}

PlainReader::StoredPart PlainReader::stored(const ResizeDraw& draw, std::size_t first,
                                            std::size_t elements) const noexcept {
  if (resizer_) {  // of all images of a row
    const Resizer::Read read = resizer_->read(draw);
    return {read.first, read.elements + column_->row_bytes() / in_size_ - resizer_->stored_elements()};
  }
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
  plan->in_order = !images_ && !resizer_;
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  plan->rows = rows;
  if (draws_) {
    plan->draws.reserve(rows.size());
    for (const std::uint64_t seed : seeds) plan->draws.push_back(draw_of(*draws_, shape_, seed));
  }
  plan->bytes_in = images_ && !past_cache_    ? plan->bytes / out_size_ * in_size_
                   : resizer_ && !past_cache_ ? bytes_in(plan->draws)
                                              : rows.size() * column_->row_bytes();
  return plan;
}

// That are read of images for the parts that are resized.
std::size_t PlainReader::bytes_in(std::span<const ResizeDraw> draws) const noexcept {
  std::size_t pixels = 0;
  for (const ResizeDraw& draw : draws) pixels += std::size_t{draw.height} * draw.width;
  return pixels * shape_.channels * in_size_ * (column_->row_bytes() / resizer_->in_bytes());
}

void PlainReader::fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled& found) const {
  if (staged()) return fill_staged(plan, out, begin, end, cold, found);
  if (!resizer_) return fill_by(mover_, plan, out, begin, end, cold, found);
  ResizeScratch scratch(*resizer_, cold.workspace.data());
  fill_by(mover_.with(&scratch), plan, out, begin, end, cold, found);
}

void PlainReader::fill_by(const Mover& mover, const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end,
                          const ColdReads& cold, Filled& found) const {
  Part part(*this, plain_plan(plan), out, begin, end, cold, found, mover);
  // What the storages' caches hold, and reads past the page cache, many at once.
  if (past_cache_) return part.copy(part.runs(), mover, cold, found);
  const void* const fault = guarded([&part]() noexcept { part.copy(); });
  if (fault != nullptr) part.fail(fault);
}

// Row by row: the reads of a row may end in any order.
void PlainReader::fill_staged(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end,
                              const ColdReads& cold, Filled& found) const {
  const PlainPlan& plan = plain_plan(base);
  ResizeScratch scratch(*resizer_, cold.workspace.data());
  std::byte* const row = cold.workspace.data() + round_up(resizer_->scratch_bytes(), kAlign);
  const Mover copy(find_copy(best_isa(), Store::cached), 1, 1);
  const Part share(*this, plan, out, begin, end, cold, found, copy);
  for (std::size_t at = share.begin(); at < share.end(); at += out_row_bytes_) {
    Part part(*this, plan, out, at, at + out_row_bytes_, cold, found, copy);
    std::vector<PlannedRun> runs = part.runs();
    for (PlannedRun& run : runs) {  // bytes, in the order of the row
      run.row_out = row;
      run.elements *= in_size_;
      run.first *= in_size_;
    }
    part.copy(runs, copy, cold, found);
    mover_.with (&scratch)(row, out + at, column_->row_bytes() / in_size_, 0, plan.draw(at / out_row_bytes_));
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
