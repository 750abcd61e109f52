// The definition of casts with constants, and the tables that every instruction set reads.
#include "cast/affine.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cast/element.h"
#include "cast/element_of.h"
#include "cast/target.h"

namespace memload {
namespace {

// Shorter runs of one channel are tabulated with all channels, as long as that is a small table.
constexpr std::size_t kShortRun = 64;

template <class Wide>
struct Table {
  const Wide* mean;
  const Wide* deviation;
};

template <class Wide>
Table<Wide> table_of(const AffineLoop& loop) {
  if constexpr (std::is_same_v<Wide, double>) {
    return {loop.mean64, loop.deviation64};
  } else {
    return {loop.mean, loop.deviation};
  }
}

template <DType From, DType To>
void affine_scalar(const AffineLoop& loop, const std::byte* src, std::byte* dst, std::size_t n,
                   std::size_t at) noexcept {
  using In = ElementOf<From>;
  using Out = ElementOf<To>;
  using Wide = std::conditional_t<From == DType::f64 || To == DType::f64, double, float>;
  const Table<Wide> table = table_of<Wide>(loop);
  const auto scale = static_cast<Wide>(loop.scale);
  const auto offset = static_cast<Wide>(loop.offset);
  for (std::size_t i = 0; i < n; ++i) {
    In in;
    std::memcpy(&in, src + i * sizeof(In), sizeof(In));
    const Wide x = computed(static_cast<Wide>(widen(in)), scale, offset, table.mean[at], table.deviation[at]);
    const Out out = narrow<Out>(x);
    std::memcpy(dst + i * sizeof(Out), &out, sizeof(Out));
    if (++at == loop.period) at = 0;
  }
}

template <DType From>
AffineFn scalar_to(DType to) {
  switch (to) {
    case DType::bf16:
      return affine_scalar<From, DType::bf16>;
    case DType::f16:
      return affine_scalar<From, DType::f16>;
    case DType::f32:
      return affine_scalar<From, DType::f32>;
    case DType::f64:
      return affine_scalar<From, DType::f64>;
    default:
      throw std::invalid_argument("no cast to " + std::string(name_of(to)) +
                                  ": the target is one of BF16, F16, F32, F64");
  }
}

AffineFn scalar_affine(DType from, DType to) {
  return with_element(from, [to]<DType From>() { return scalar_to<From>(to); });
}

// The period repeated until a vector fits in, and the beginning once more behind the end.
template <class Wide>
std::vector<Wide> repeated(const std::vector<double>& by_channel, std::size_t inner, std::size_t period) {
  std::vector<Wide> table(period + AffineLoop::kLanes);
  for (std::size_t e = 0; e < table.size(); ++e)
    table[e] = static_cast<Wide>(by_channel[e / inner % by_channel.size()]);
  return table;
}

}  // namespace

AffineCast::AffineCast(DType from, DType to, const Affine& rule, Isa isa, Store store)
    : in_size_(size_of(from)), out_size_(size_of(to)), inner_(rule.inner), channels_(rule.mean.size()) {
  loop_.scale = rule.scale;
  loop_.offset = rule.offset;
  loop_.scalar = scalar_affine(from, to);
  if (rule.inner == 0 || rule.mean.empty() || rule.deviation.size() != rule.mean.size()) {
    throw std::invalid_argument(
        "a cast with constants needs as many means as deviations, and elements in each channel");
  }
  const bool wide = from == DType::f64 || to == DType::f64;
  const bool divides = std::any_of(rule.deviation.begin(), rule.deviation.end(), [](double d) { return d != 1; });
  const AffineFn vector = wide ? nullptr : find_affine(from, to, divides, isa, store);
  run_ = vector != nullptr ? vector : loop_.scalar;
  tabulate(rule);
}

void AffineCast::tabulate(const Affine& rule) {
  const bool wide = in_size_ == 8 || out_size_ == 8;  // more than what is f64, which costs a table
  if (channels_ == 1) inner_ = 1;
  const bool by_run = inner_ >= kShortRun;
  const std::size_t whole = by_run ? AffineLoop::kLanes : channels_ * inner_;
  loop_.period = (AffineLoop::kLanes + whole - 1) / whole * whole;
  const std::size_t inner = by_run ? 2 * AffineLoop::kLanes : inner_;  // by run: a block of its own for each channel
  const std::size_t length = by_run ? (channels_ - 1) * inner + loop_.period : loop_.period;
  mean_ = repeated<float>(rule.mean, inner, length);
  deviation_ = repeated<float>(rule.deviation, inner, length);
  if (wide) {
    mean64_ = repeated<double>(rule.mean, inner, length);
    deviation64_ = repeated<double>(rule.deviation, inner, length);
  }
  if (!by_run) inner_ = 0;
  loop_.mean = mean_.data();
  loop_.deviation = deviation_.data();
  loop_.mean64 = wide ? mean64_.data() : nullptr;
  loop_.deviation64 = wide ? deviation64_.data() : nullptr;
}

void AffineCast::operator()(const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) const noexcept {
  if (inner_ == 0) return run_(loop_, src, dst, n, at % loop_.period);
  AffineLoop loop = loop_;
  std::size_t channel = at / inner_ % channels_;
  std::size_t left = inner_ - at % inner_;
  while (n != 0) {
    const std::size_t block = channel * 2 * AffineLoop::kLanes;
    loop.mean = loop_.mean + block;
    loop.deviation = loop_.deviation + block;
    loop.mean64 = loop_.mean64 == nullptr ? nullptr : loop_.mean64 + block;
    loop.deviation64 = loop_.deviation64 == nullptr ? nullptr : loop_.deviation64 + block;
    const std::size_t run = std::min(left, n);
    run_(loop, src, dst, run, 0);
    src += run * in_size_;
    dst += run * out_size_;
    n -= run;
    left = inner_;
    channel = channel + 1 == channels_ ? 0 : channel + 1;
  }
}

}  // namespace memload
