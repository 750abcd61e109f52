#include "core/readers/event_reader.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cast/draws.h"

namespace memload {
namespace {

constexpr std::size_t kAtOnce = 512;  // items that are computed before they are written: a part of a first cache

struct CountPlan : FieldPlan {
  std::vector<SliceTimes::Slice> slices;
  std::vector<std::int64_t> starts;
};

struct EventPlan : ItemPlan {
  std::vector<EventRun> runs;
};

// Computes items of a run by `item` and writes them by the kernel, which counts an item as `units`.
template <class Item>
void put_items(std::size_t count, CopyFn kernel, std::size_t units, std::byte* out, std::size_t out_bytes,
               const Item& item) noexcept {
  std::array<decltype(item(0)), kAtOnce> items;
  for (std::size_t done = 0; done < count; done += kAtOnce) {
    const std::size_t n = std::min(kAtOnce, count - done);
    for (std::size_t i = 0; i < n; ++i) items[i] = item(done + i);
    kernel(reinterpret_cast<const std::byte*>(items.data()), out + done * out_bytes, n * units);
  }
}

}  // namespace

CountReader::CountReader(std::shared_ptr<const EventCounts> counts, const std::optional<CastRule>& cast,
                         const Affine* affine, Isa isa, Store store)
    : counts_(std::move(counts)),
      affine_(affine == nullptr ? nullptr
                                : std::make_unique<const AffineCast>(cast->from, cast->to, *affine, isa, store)),
      mover_(Mover::of(cast, affine_.get(), isa, store)),
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

EventReader::EventReader(std::shared_ptr<const EventItems> events, const std::optional<CastRule>& cast, Isa isa,
                         Store store)
    : events_(std::move(events)),
      kernel_(cast ? find_cast(*cast, isa, store) : find_copy(isa, store)),
      units_(cast ? 1 : EventItems::kItemBytes),
      layout_{1, cast ? size_of(cast->to) : EventItems::kItemBytes, events_->pads()} {
  if (cast && cast->from != events_->element()) throw std::invalid_argument("a cast of other elements");
  if (const std::size_t pad = events_->pad().size(); pad != 0 && layout_.item_bytes % pad != 0) {
    throw std::invalid_argument("a pad of another size than an item");
  }
}

std::unique_ptr<const FieldPlan> EventReader::plan(std::span<const std::int64_t> rows, Seeds seeds) const {
  auto plan = std::make_unique<EventPlan>();
  plan->runs.reserve(rows.size());
  plan->numbers.reserve(rows.size() + 1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t drawn = seeds.empty() ? 0 : start_of_slice(events_->times().at(rows[i]).span, seeds[i]);
    plan->runs.push_back(events_->find(rows[i], drawn));
    plan->numbers.push_back(plan->runs.back().count);
  }
  plan->bytes_in = static_cast<std::size_t>(layout_.lay_out(*plan)) * EventItems::kItemBytes;
  plan->values_work = plan->numbers_at;
  plan->work = plan->bytes;
  plan->in_order = true;
  return plan;
}

void EventReader::fill(const FieldPlan& base, std::byte* out, std::size_t begin, std::size_t end, const ColdReads&,
                       Filled&) const {
  const auto& plan = static_cast<const EventPlan&>(base);
  const std::size_t values_end = std::min(end, plan.plane_bytes);
  const auto after = std::upper_bound(plan.starts.begin(), plan.starts.end(), begin);
  auto i = static_cast<std::size_t>(after - plan.starts.begin()) - 1;
  for (std::size_t at = begin; at < values_end; ++i) {
    const std::size_t stop = std::min(values_end, plan.starts[i + 1]);
    fill_row(plan.runs[i], out + at, at - plan.starts[i], stop - plan.starts[i], at);
    at = stop;
  }
  const std::size_t from = std::max(begin, plan.numbers_at);
  const std::size_t to = std::min(end, plan.numbers_at + plan.numbers_bytes());
  if (from < to) plan.put_numbers(out, from - plan.numbers_at, to - plan.numbers_at);
}

// Bytes [begin, end) of a row's place, of which the first is byte `at` of the output.
void EventReader::fill_row(const EventRun& run, std::byte* out, std::size_t begin, std::size_t end,
                           std::size_t at) const noexcept {
  const std::size_t first = begin / layout_.item_bytes;
  const std::size_t last = std::min(end / layout_.item_bytes, static_cast<std::size_t>(run.count));
  if (first < last) {
    put(run, first, last - first, out);
    const std::size_t written = (last - first) * layout_.item_bytes;
    out += written;
    begin += written;
    at += written;
  }
  if (begin < end) put_pattern(events_->pad(), out, end - begin, at);
}

void EventReader::put(const EventRun& run, std::size_t first, std::size_t count, std::byte* out) const noexcept {
  const std::size_t at = static_cast<std::size_t>(run.first) + first;
  if (events_->item() == EventItem::unit) {
    const std::int32_t* const units = run.events->units.data() + at;
    put_items(count, kernel_, units_, out, layout_.item_bytes,
              [units](std::size_t i) { return std::int64_t{units[i]}; });
    return;
  }
  const std::int64_t* const times = run.events->times.data() + at;
  put_items(count, kernel_, units_, out, layout_.item_bytes, [times, begin = run.begin](std::size_t i) {
    return static_cast<double>(std::max<std::int64_t>(times[i] - begin, 0)) / static_cast<double>(kSecond);
  });
}

}  // namespace memload
