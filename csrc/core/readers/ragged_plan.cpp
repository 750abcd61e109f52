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

constexpr std::size_t kAlign = FieldReader::kAlign;

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

void RaggedPlan::put_numbers(std::byte* out, std::size_t begin, std::size_t end) const noexcept {
  const auto* const bytes = reinterpret_cast<const std::byte*>(numbers.data());
  std::memcpy(out + numbers_at + begin, bytes + begin, end - begin);
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

// Of both outputs, with the padding between them.
std::size_t RaggedForm::bytes_of(std::int64_t items, std::size_t rows) const {
  const std::size_t values = batch_bytes(static_cast<std::size_t>(items), ragged_->planes() * out_item_bytes_);
  return batch_bytes(1, round_up(values, kAlign) + batch_bytes(rows + 1, sizeof(std::int64_t)));
}

std::size_t RaggedForm::bound(std::size_t rows) const {
  if (!ragged_->pads()) return bytes_of(ragged_->longest(rows), rows);
  return bytes_of(static_cast<std::int64_t>(batch_bytes(rows, static_cast<std::size_t>(ragged_->longest(1)))), rows);
}

void RaggedForm::plan(std::span<const std::int64_t> rows, RaggedPlan& plan) const {
  plan.runs.resize(rows.size());
  ragged_->find(rows, plan.runs);
  plan.numbers.reserve(rows.size() + 1);
  std::int64_t items = 0;
  std::int64_t longest = 0;
  for (const Run& run : plan.runs) {
    plan.numbers.push_back(ragged_->pads() ? run.items : items);
    if (__builtin_add_overflow(items, run.items, &items)) throw std::length_error("a batch is larger than any memory");
    longest = std::max(longest, run.items);
  }
  plan.bytes_in = static_cast<std::size_t>(items) * ragged_->planes() * ragged_->item_bytes();
  if (ragged_->pads()) {
    items = static_cast<std::int64_t>(batch_bytes(rows.size(), static_cast<std::size_t>(longest)));
  } else {
    plan.numbers.push_back(items);
  }
  plan.bytes = bytes_of(items, rows.size());  // which also says that what follows can be counted
  plan.starts.reserve(rows.size() + 1);
  for (std::size_t i = 0; i <= rows.size(); ++i) {
    const auto before =
        ragged_->pads() ? i * static_cast<std::size_t>(longest) : static_cast<std::size_t>(plan.numbers[i]);
    plan.starts.push_back(before * out_item_bytes_);
  }
  plan.plane_bytes = plan.starts.back();
  plan.numbers_at = round_up(plan.plane_bytes * ragged_->planes(), kAlign);
  plan.outputs[0] = {0, items * static_cast<std::int64_t>(ragged_->planes())};
  plan.outputs[1] = {plan.numbers_at, static_cast<std::int64_t>(plan.numbers.size())};
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

// The pattern again and again, of which a first byte lies at every multiple of its size; zeros if it is empty.
void RaggedForm::pad(std::byte* out, std::size_t n, std::size_t at) const noexcept {
  const std::span<const std::byte> pattern = ragged_->pad();
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

}  // namespace memload
