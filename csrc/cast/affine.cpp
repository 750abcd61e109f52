// The definition of casts with constants, and the tables that every instruction set reads.
#include "cast/affine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
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

constexpr std::size_t kChannels = 64;  // with more of them, to try constants or results costs more than it saves
constexpr std::size_t kBytes = 256;    // that elements of one byte can be

// The constants of one channel, if one operation is enough.
struct Fused {
  float factor, shift;
};

// A loop whose elements all belong to one channel, and what the definition makes of each byte there.
class Channel {
 public:
  Channel(const AffineLoop& loop, double mean, double deviation, std::size_t out_size)
      : loop_(loop), bytes_(kBytes * out_size) {
    for (std::size_t i = 0; i < every_.size(); ++i) every_[i] = static_cast<std::byte>(i);
    mean_.fill(static_cast<float>(mean));
    deviation_.fill(static_cast<float>(deviation));
    loop_.mean = mean_.data();
    loop_.deviation = deviation_.data();
    loop_.factor = factor_.data();
    loop_.shift = shift_.data();
    loop_.period = AffineLoop::kLanes;
    loop_.scalar(loop_, every_.data(), expected_.data(), every_.size(), 0);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Writes them as AffineLoop::results has them.
  void write_results(std::byte* to) const {
    const std::size_t size = bytes_ / kBytes;
    for (std::size_t i = 0; i < bytes_; ++i) to[i % size * kBytes + i / size] = expected_[i];
  }

  [[nodiscard]] bool agrees(AffineFn fast, Fused by) {
    factor_.fill(by.factor);
    shift_.fill(by.shift);
    fast(loop_, every_.data(), got_.data(), every_.size(), 0);
    return std::memcmp(got_.data(), expected_.data(), bytes_) == 0;
  }

 private:
  AffineLoop loop_;
  std::size_t bytes_;
  std::array<std::byte, kBytes> every_{};
  alignas(64) std::array<std::byte, kBytes * sizeof(float)> expected_{};
  alignas(64) std::array<std::byte, kBytes * sizeof(float)> got_{};
  std::array<float, 2 * AffineLoop::kLanes> mean_{}, deviation_{}, factor_{}, shift_{};
};

float moved(float value, int places) {
  const float limit = std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(places));
  for (; places != 0; places -= places > 0 ? 1 : -1) value = std::nextafter(value, limit);
  return value;
}

// The nearest constants first, then those some places away: the definition rounds several times, and a result that is
// near a tie may need a line that passes on the other side of it.
std::optional<Fused> proven(AffineFn fast, Channel& channel, double factor, double shift) {
  constexpr std::array kPlaces{0, 1, -1, 2, -2, 4, -4, 8, -8};
  for (const int of_factor : {0, 1, -1, 2, -2}) {
    for (const int of_shift : kPlaces) {
      const Fused by{moved(static_cast<float>(factor), of_factor), moved(static_cast<float>(shift), of_shift)};
      if (channel.agrees(fast, by)) return by;
    }
  }
  return std::nullopt;
}

// Of tables that repeat after `whole` elements: a multiple of it, and of a vector, as long as that is a small table.
// Then each vector is loaded from whole lines of the cache.
std::size_t period_of(std::size_t whole) {
  constexpr std::size_t kSmall = 512;
  const std::size_t aligned = std::lcm(whole, AffineLoop::kLanes);
  return aligned <= kSmall ? aligned : (AffineLoop::kLanes + whole - 1) / whole * whole;
}

// The period repeated until a vector fits in, and the beginning once more behind the end.
template <class Wide>
LineVector<Wide> repeated(const std::vector<double>& by_channel, std::size_t inner, std::size_t period) {
  LineVector<Wide> table(period + AffineLoop::kLanes);
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
  const Arithmetic how = divides ? Arithmetic::defined : Arithmetic::without_division;
  const AffineFn vector = wide ? nullptr : find_affine(from, to, how, isa, store);
  run_ = vector != nullptr ? vector : loop_.scalar;
  tabulate(rule);
  const bool looked_up = in_size_ == 1 && !wide && look_up(rule, from, to, isa, store);
  if (in_size_ == 1 && out_size_ == 2 && !looked_up) fuse(rule, from, to, isa, store);
  point_at_tables();
}

// Elements of one byte have so few results that registers hold those of a channel.
bool AffineCast::look_up(const Affine& rule, DType from, DType to, Isa isa, Store store) {
  const bool by_channel = inner_ != 0 || channels_ == 1;
  const AffineFn fast = by_channel ? find_affine(from, to, Arithmetic::table, isa, store) : nullptr;
  if (fast == nullptr || channels_ > kChannels) return false;
  const std::size_t bytes = kBytes * out_size_;
  results_.resize(channels_ * bytes);
  for (std::size_t c = 0; c < channels_; ++c) {
    Channel(loop_, rule.mean[c], rule.deviation[c], out_size_).write_results(results_.data() + c * bytes);
  }
  run_ = fast;
  return true;
}

// Elements of one byte have 256 values, so that constants can be tried with all of them. The 16 bits of the results
// leave room for the difference between one rounding and several.
void AffineCast::fuse(const Affine& rule, DType from, DType to, Isa isa, Store store) {
  const AffineFn fast = find_affine(from, to, Arithmetic::fused, isa, Store::cached);
  if (fast == nullptr || channels_ > kChannels) return;
  std::vector<double> factors, shifts;
  for (std::size_t c = 0; c < channels_; ++c) {
    Channel channel(loop_, rule.mean[c], rule.deviation[c], out_size_);
    const double shift = (rule.offset - rule.mean[c]) / rule.deviation[c];
    const auto by = proven(fast, channel, rule.scale / rule.deviation[c], shift);
    if (!by) return;
    factors.push_back(by->factor);
    shifts.push_back(by->shift);
  }
  const std::size_t length = mean_.size() - AffineLoop::kLanes;
  factor_ = repeated<float>(factors, block_, length);
  shift_ = repeated<float>(shifts, block_, length);
  run_ = find_affine(from, to, Arithmetic::fused, isa, store);
}

void AffineCast::tabulate(const Affine& rule) {
  const bool wide = in_size_ == 8 || out_size_ == 8;  // more than what is f64, which costs a table
  if (channels_ == 1) inner_ = 1;
  const bool by_run = inner_ >= kShortRun;
  const std::size_t whole = by_run ? AffineLoop::kLanes : channels_ * inner_;
  loop_.period = period_of(whole);
  block_ = by_run ? 2 * AffineLoop::kLanes : inner_;
  const std::size_t length = by_run ? (channels_ - 1) * block_ + loop_.period : loop_.period;
  mean_ = repeated<float>(rule.mean, block_, length);
  deviation_ = repeated<float>(rule.deviation, block_, length);
  if (wide) {
    mean64_ = repeated<double>(rule.mean, block_, length);
    deviation64_ = repeated<double>(rule.deviation, block_, length);
  }
  if (!by_run) {
    whole_ = whole;
    inner_ = 0;
  }
}

void AffineCast::point_at_tables() {
  const auto from = [](const auto& table, std::size_t at) { return table.empty() ? nullptr : table.data() + at; };
  const auto loop_from = [&](std::size_t channel) {
    const std::size_t at = channel * block_;
    AffineLoop loop = loop_;
    loop.mean = mean_.data() + at;
    loop.deviation = deviation_.data() + at;
    loop.mean64 = from(mean64_, at);
    loop.deviation64 = from(deviation64_, at);
    loop.factor = from(factor_, at);
    loop.shift = from(shift_, at);
    loop.results = from(results_, channel * kBytes * out_size_);
    return loop;
  };
  loop_ = loop_from(0);
  for (std::size_t c = 0; inner_ != 0 && c < channels_; ++c) runs_.push_back(loop_from(c));
}

void AffineCast::operator()(const std::byte* src, std::byte* dst, std::size_t n, std::size_t at) const noexcept {
  if (inner_ == 0) return run_(loop_, src, dst, n, at % whole_);
  std::size_t channel = at / inner_ % channels_;
  std::size_t left = inner_ - at % inner_;
  while (n != 0) {
    const std::size_t run = std::min(left, n);
    run_(runs_[channel], src, dst, run, 0);
    src += run * in_size_;
    dst += run * out_size_;
    n -= run;
    left = inner_;
    channel = channel + 1 == channels_ ? 0 : channel + 1;
  }
}

}  // namespace memload
