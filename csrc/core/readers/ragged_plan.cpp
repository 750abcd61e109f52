#include "core/readers/ragged_plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "core/base/memory.h"

namespace memload {
namespace {

template <class Number>
void copy_increased(const std::byte* src, std::byte* dst, std::size_t bytes, std::int64_t by) noexcept {
  const auto increment = static_cast<Number>(by);
  for (std::size_t i = 0; i < bytes; i += sizeof(Number)) {
    Number number;
    std::memcpy(&number, src + i, sizeof number);
    number = static_cast<Number>(static_cast<std::make_unsigned_t<Number>>(number) +
                                 static_cast<std::make_unsigned_t<Number>>(increment));
    std::memcpy(dst + i, &number, sizeof number);
  }
}

}  // namespace

void ItemPlan::put_numbers(std::byte* out, std::size_t begin, std::size_t end) const noexcept {
  const auto* const bytes = reinterpret_cast<const std::byte*>(numbers.data());
  std::memcpy(out + numbers_at + begin, bytes + begin, end - begin);
}

std::size_t ItemLayout::bytes_of(std::int64_t items, std::size_t rows) const {
  const std::size_t values = batch_bytes(static_cast<std::size_t>(items), planes * item_bytes);
  return batch_bytes(1, round_up(values, FieldReader::kAlign) + batch_bytes(rows + 1, sizeof(std::int64_t)));
}

std::int64_t ItemLayout::lay_out(ItemPlan& plan) const {
  const std::size_t rows = plan.numbers.size();
  const std::int64_t longest = rows == 0 ? 0 : *std::max_element(plan.numbers.begin(), plan.numbers.end());
  std::int64_t items = 0;
  for (std::int64_t& number : plan.numbers) {
    const std::int64_t before = items;
    if (__builtin_add_overflow(items, number, &items)) throw std::length_error("a batch is larger than any memory");
    if (!pads) number = before;
  }
  if (!pads) plan.numbers.push_back(items);
  const std::int64_t placed =
      pads ? static_cast<std::int64_t>(batch_bytes(rows, static_cast<std::size_t>(longest))) : items;
  plan.bytes = bytes_of(placed, rows);  // which also says that what follows can be counted
  plan.starts.reserve(rows + 1);
  for (std::size_t i = 0; i <= rows; ++i) {
    const auto before = pads ? i * static_cast<std::size_t>(longest) : static_cast<std::size_t>(plan.numbers[i]);
    plan.starts.push_back(before * item_bytes);
  }
  plan.plane_bytes = plan.starts.back();
  plan.numbers_at = round_up(plan.plane_bytes * planes, FieldReader::kAlign);
  plan.outputs[0] = {0, placed * static_cast<std::int64_t>(planes)};
  plan.outputs[1] = {plan.numbers_at, static_cast<std::int64_t>(plan.numbers.size())};
  return items;
}

void put_pattern(std::span<const std::byte> pattern, std::byte* out, std::size_t n, std::size_t at) noexcept {
  if (pattern.empty()) {
    std::memset(out, 0, n);
    return;
  }
  std::size_t filled = std::min(n, pattern.size());
  for (std::size_t i = 0; i < filled; ++i) out[i] = pattern[(at + i) % pattern.size()];
  while (filled < n) {  // what is there repeats after each whole pattern
    const std::size_t more = std::min(filled, n - filled);
    std::memcpy(out + filled, out, more);
    filled += more;
  }
}

RaggedForm::RaggedForm(std::shared_ptr<const Ragged> ragged, const std::optional<CastRule>& cast, Isa isa, Store store)
    : ragged_(std::move(ragged)),
      kernel_(cast ? find_cast(*cast, isa, store) : find_copy(isa, store)),
      casts_(cast.has_value()) {
  if (cast) {
    if (ragged_->counts()) throw std::invalid_argument("items that are increased cannot be cast");
    in_size_ = size_of(cast->from);
    out_size_ = size_of(cast->to);
  }
  if (ragged_->item_bytes() % in_size_ != 0) {
    throw std::invalid_argument("an item of " + std::to_string(ragged_->item_bytes()) +
                                " bytes is not a whole number of elements of " + std::to_string(in_size_));
  }
  out_item_bytes_ = ragged_->item_bytes() / in_size_ * out_size_;
  if (const std::size_t pad = ragged_->pad().size(); pad != 0 && out_item_bytes_ % pad != 0) {
    throw std::invalid_argument("an item of " + std::to_string(out_item_bytes_) +
                                " bytes is not a whole number of pads of " + std::to_string(pad));
  }
}

void RaggedForm::plan(std::span<const std::int64_t> rows, RaggedPlan& plan) const {
  plan.runs.resize(rows.size());
  ragged_->find(rows, plan.runs);
  plan.numbers.reserve(rows.size() + 1);
  for (const Run& run : plan.runs) plan.numbers.push_back(run.items);
  const std::int64_t items = layout().lay_out(plan);
  plan.bytes_in = static_cast<std::size_t>(items) * ragged_->planes() * ragged_->item_bytes();
  if (const auto& counts = ragged_->counts()) {
    plan.increments.resize(rows.size());
    counts->lengths(rows, plan.increments);
    std::int64_t sum = 0;
    for (std::int64_t& n : plan.increments) n = std::exchange(sum, sum + n);
  }
}

void RaggedForm::put(const RaggedPlan& plan, std::size_t i, const std::byte* src, std::byte* out,
                     std::size_t elements) const noexcept {
  if (plan.increments.empty()) {
    kernel_(src, out, elements);
  } else if (ragged_->item_bytes() == sizeof(std::int32_t)) {
    copy_increased<std::int32_t>(src, out, elements, plan.increments[i]);
  } else {
    copy_increased<std::int64_t>(src, out, elements, plan.increments[i]);
  }
}

}  // namespace memload
