#include "core/readers/count_reader.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cast/draws.h"

namespace memload {
namespace {

struct CountPlan : FieldPlan {
  std::vector<SliceTimes::Slice> slices;
  std::vector<std::int64_t> starts;
};

Mover mover_of(const std::optional<CastRule>& cast, const AffineCast* affine, Isa isa, Store store) {
  if (affine != nullptr) return {*affine, size_of(cast->from), size_of(cast->to)};
  if (cast) return {find_cast(*cast, isa, store), size_of(cast->from), size_of(cast->to)};
  return {find_copy(isa, store), 1, 1};
}

}  // namespace

CountReader::CountReader(std::shared_ptr<const EventCounts> counts, const std::optional<CastRule>& cast,
                         const Affine* affine, Isa isa, Store store)
    : counts_(std::move(counts)),
      affine_(affine == nullptr ? nullptr
                                : std::make_unique<const AffineCast>(cast->from, cast->to, *affine, isa, store)),
      mover_(mover_of(cast, affine_.get(), isa, store)),
      out_row_bytes_(counts_->row_bytes() / sizeof(std::int16_t) * (cast ? size_of(cast->to) : sizeof(std::int16_t))) {
  if (cast && cast->from != DType::i16) throw std::invalid_argument("counts are cast from int16");
}

std::unique_ptr<const FieldPlan> CountReader::plan(std::span<const std::int64_t> rows, Seeds seeds) const {
  auto plan = std::make_unique<CountPlan>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SliceTimes::Slice slice = counts_->times().at(rows[i]);
    plan->slices.push_back(slice);
    plan->starts.push_back(slice.start + (seeds.empty() ? 0 : start_of_slice(slice.span, seeds[i])));
  }
  plan->bytes = plan->work = bound(rows.size());
  plan->bytes_in = rows.size() * counts_->row_bytes();
  plan->outputs[0] = {0, static_cast<std::int64_t>(rows.size())};
  return plan;
}

void CountReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                       Filled&) const {
  const auto& plan = static_cast<const CountPlan&>(base);
  const std::size_t elements = counts_->row_bytes() / sizeof(std::int16_t);
  const std::span<std::int16_t> counted(reinterpret_cast<std::int16_t*>(cold.workspace.data()), elements);
  for (std::size_t i = (begin + out_row_bytes_ - 1) / out_row_bytes_; i * out_row_bytes_ < end; ++i) {
    counts_->count(plan.slices[i], plan.starts[i], counted);
    const std::size_t n = elements * sizeof(std::int16_t) / mover_.in();
    mover_(cold.workspace.data(), out + i * out_row_bytes_, n, 0, {});
  }
}

}  // namespace memload
