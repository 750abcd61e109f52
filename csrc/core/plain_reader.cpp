#include "core/plain_reader.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/direct_file.h"
#include "core/error.h"
#include "core/fault_guard.h"
#include "core/gather.h"
#include "core/run_copier.h"

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
                         Store store, const Affine* affine)
    : column_(std::move(column)),
      affine_(cast && affine != nullptr ? std::make_unique<AffineCast>(cast->from, cast->to, *affine, isa, store)
                                        : nullptr),
      mover_(affine_ ? Mover(*affine_)
             : cast  ? find_cast(*cast, isa, store)
                     : find_copy(isa, store)) {
  if (cast) {
    in_size_ = size_of(cast->from);
    out_size_ = size_of(cast->to);
  }
  if (column_->row_bytes() % in_size_ != 0) {
    throw std::invalid_argument("a row of " + std::to_string(column_->row_bytes()) +
                                " bytes is not a whole number of elements of " + std::to_string(in_size_));
  }
  out_row_bytes_ = column_->row_bytes() / in_size_ * out_size_;
}

FieldReader::Files PlainReader::files() const noexcept {
  Files files;
  for (const Segment& segment : column_->segments()) {
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
  plan->in_order = true;
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  plan->rows = rows;
  return plan;
}

void PlainReader::fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled& found) const {
  Part part(*this, static_cast<const PlainPlan&>(plan).rows, out, begin, end, cold, found);
  const void* const fault = guarded([&part]() noexcept { part.copy(); });
  if (fault != nullptr) part.fail(fault);
}

std::size_t PlainReader::edge(const FieldPlan& plan, std::size_t at) const noexcept {
  if (!large() || DirectFile::room_for(column_->row_bytes()) > Gather::kScratch) return at;
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
