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
};

}  // namespace

// Bytes [begin, end) of what the field has in the slot.
class PlainReader::Part {
 public:
  Part(const PlainReader& field, std::span<const std::int64_t> rows, std::byte* out, std::size_t begin, std::size_t end,
       const ColdReads& cold, Filled& found)
      : field_(field),
        rows_(rows),
        out_(out),
        begin_(begin),
        end_(end),
        copier_(field.mover_, field.in_size_, field.out_size_, cold, found) {}

  // Runs under the fault guard: owns nothing, throws nothing.
  void copy() noexcept {
    const Column& column = *field_.column_;
    const std::size_t row_bytes = field_.out_row_bytes_;
    std::size_t at = begin_;
    std::size_t inside = at % row_bytes;
    for (std::size_t i = at / row_bytes; at < end_; ++i) {
      current_ = i;
      if (i + kAhead < rows_.size()) RunCopier::prefetch(column.address(rows_[i + kAhead]), column.row_bytes());
      const std::size_t bytes = std::min(row_bytes - inside, end_ - at);
      const std::size_t elements = bytes / field_.out_size_;
      const std::size_t skipped = inside / field_.out_size_ * field_.in_size_;
      const Extent extent = column.at(rows_[i]);
      copier_.copy(*extent.segment->storage, extent.data + skipped, out_ + at, elements, column.row_bytes(),
                   inside / field_.out_size_);
      at += bytes;
      inside = 0;
    }
  }

  // Of one run, by the mapping.
  void copy(const PlannedRun& run) noexcept {
    current_ = run.row;
    copier_.copy_mapped(*run.storage, run.src, run.out, run.elements, field_.column_->row_bytes(), run.first);
  }

  // The runs of this part, cut at its ends.
  [[nodiscard]] std::vector<PlannedRun> runs() const {
    const std::size_t row_bytes = field_.out_row_bytes_;
    std::vector<PlannedRun> found;
    for (std::size_t at = begin_; at < end_;) {
      const std::size_t row = at / row_bytes;
      const std::size_t inside = at % row_bytes;
      const std::size_t run_end = std::min((inside / field_.out_run_ + 1) * field_.out_run_, row_bytes);
      const std::size_t bytes = std::min(run_end - inside, end_ - at);
      const Extent extent = field_.column_->at(rows_[row]);
      const std::byte* const src = extent.data + inside / field_.out_size_ * field_.in_size_;
      found.push_back(
          {extent.segment->storage.get(), src, out_ + at, bytes / field_.out_size_, inside / field_.out_size_, row});
      at += bytes;
    }
    return found;
  }

  [[noreturn]] void fail(const void* address) const {
    const Extent extent = field_.column_->at(rows_[current_]);
    throw extent.segment->storage->unreadable(extent.row_in_segment, address);
  }

 private:
  const PlainReader& field_;
  std::span<const std::int64_t> rows_;
  std::byte* out_;
  std::size_t begin_;
  std::size_t end_;
  RunCopier copier_;
  volatile std::size_t current_ = 0;  // read after a jump out of copy()
};

PlainReader::PlainReader(std::shared_ptr<const Column> column, const std::optional<CastRule>& cast, Isa isa,
                         Store store, const Affine* affine, const std::optional<Planes>& planes)
    : column_(std::move(column)),
      planar_(cast && planes ? std::make_unique<PlanarCast>(*cast, affine, *planes, isa, store) : nullptr),
      affine_(cast && affine != nullptr && !planes
                  ? std::make_unique<AffineCast>(cast->from, cast->to, *affine, isa, store)
                  : nullptr),
      mover_(planar_   ? Mover(*planar_)
             : affine_ ? Mover(*affine_)
             : cast    ? find_cast(*cast, isa, store)
                       : find_copy(isa, store)) {
  if (cast) {
    in_size_ = size_of(cast->from);
    out_size_ = size_of(cast->to);
  }
  if (column_->row_bytes() % in_size_ != 0) {
    throw std::invalid_argument("a row of " + std::to_string(column_->row_bytes()) +
                                " bytes is not a whole number of elements of " + std::to_string(in_size_));
  }
  if (planar_ && column_->row_bytes() / in_size_ % (planes->channels * planes->pixels) != 0) {
    throw std::invalid_argument("a row of " + std::to_string(column_->row_bytes() / in_size_) +
                                " elements is not a whole number of images of " + std::to_string(planes->pixels) +
                                " pixels with " + std::to_string(planes->channels) + " channels");
  }
  out_row_bytes_ = column_->row_bytes() / in_size_ * out_size_;
  out_run_ = std::min(out_row_bytes_, PlannedReads::kLargestRun / in_size_ * out_size_);
  visit_storages([this](const Storage& storage) { past_cache_ = past_cache_ || storage.past_cache(); });
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

std::unique_ptr<const FieldPlan> PlainReader::plan(std::span<const std::int64_t> rows) const {
  auto plan = std::make_unique<PlainPlan>();
  plan->bytes = plan->work = bound(rows.size());
  plan->bytes_in = rows.size() * column_->row_bytes();
  plan->in_order = planar_ == nullptr;
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  plan->rows = rows;
  return plan;
}

void PlainReader::fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled& found) const {
  if (past_cache_) return fill_past_cache(plan, out, begin, end, cold, found);
  Part part(*this, static_cast<const PlainPlan&>(plan).rows, out, begin, end, cold, found);
  const void* const fault = guarded([&part]() noexcept { part.copy(); });
  if (fault != nullptr) part.fail(fault);
}

// What the storages' caches hold, and reads past the page cache, many at once; then what has to come through mappings.
void PlainReader::fill_past_cache(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end,
                                  const ColdReads& cold, Filled& found) const {
  Part part(*this, static_cast<const PlainPlan&>(plan).rows, out, begin, end, cold, found);
  const std::vector<PlannedRun> runs = part.runs();
  std::vector<PlannedRun> mapped;
  std::vector<PlannedRun> planned;
  for (const PlannedRun& run : runs) (run.storage->past_cache() ? planned : mapped).push_back(run);
  PlannedReads(mover_, in_size_, cold, found).copy(planned, mapped);
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
