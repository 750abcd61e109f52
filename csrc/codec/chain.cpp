#include "codec/chain.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "codec/filters.h"

namespace memload {

namespace {

using filters::In;
using filters::Inner;
using filters::Out;
using Type = Filter::Type;

constexpr std::array<std::pair<Type, std::string_view>, 14> kNames{{{Type::byteswap, "byteswap"},
                                                                    {Type::shuffle, "shuffle"},
                                                                    {Type::bitshuffle, "bitshuffle"},
                                                                    {Type::bitshuffle_lz4, "bitshuffle_lz4"},
                                                                    {Type::bitshuffle_zstd, "bitshuffle_zstd"},
                                                                    {Type::deflate, "deflate"},
                                                                    {Type::lzf, "lzf"},
                                                                    {Type::lz4, "lz4"},
                                                                    {Type::lz4_blocks, "lz4_blocks"},
                                                                    {Type::zstd, "zstd"},
                                                                    {Type::blosc, "blosc"},
                                                                    {Type::fletcher32, "fletcher32"},
                                                                    {Type::crc32c, "crc32c"},
                                                                    {Type::prefix, "prefix"}}};

constexpr std::size_t kAlign = 64;

constexpr std::size_t aligned(std::size_t bytes) noexcept { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool is_checksum(Type type) noexcept { return type == Type::fletcher32 || type == Type::crc32c; }

bool keeps_size(Type type) noexcept {
  return type == Type::byteswap || type == Type::shuffle || type == Type::bitshuffle;
}

bool has_elements(Type type) noexcept {
  return keeps_size(type) || type == Type::bitshuffle_lz4 || type == Type::bitshuffle_zstd;
}

bool skips(std::uint32_t skipped, std::size_t k) noexcept { return ((skipped >> k) & 1U) != 0; }

void check(const Filter& filter) {
  constexpr std::uint32_t kMostElement = 1U << 16;
  constexpr std::uint32_t kMostBlock = 1U << 24;
  constexpr std::uint32_t kMostPrefix = 1U << 24;
  const std::string name(name_of(filter.type));
  if (has_elements(filter.type) && (filter.element < 1 || filter.element > kMostElement)) {
    throw std::invalid_argument(name + " needs elements of 1 to 65536 bytes, not of " + std::to_string(filter.element));
  }
  if (filter.type == Type::prefix && (filter.element < 1 || filter.element > kMostPrefix)) {
    throw std::invalid_argument(name + " needs 1 to 16777216 bytes, not " + std::to_string(filter.element));
  }
  if (filter.block % 8 != 0 || filter.block > kMostBlock) {
    throw std::invalid_argument(name + " needs blocks of a multiple of 8 elements, at most 16777216, not of " +
                                std::to_string(filter.block));
  }
}

std::size_t workspace_of(const Filter& filter, std::size_t out_bytes) noexcept {
  switch (filter.type) {
    case Type::deflate:
      return filters::inflate_workspace();
    case Type::bitshuffle_lz4:
    case Type::bitshuffle_zstd:
      return out_bytes;
    default:
      return 0;
  }
}

// Whether what the filter adds stands before or behind the bytes, which are a part of what it wrote.
bool encloses(Type type) noexcept { return is_checksum(type) || type == Type::prefix; }

In without_prefix(In src, std::size_t bytes) {
  if (src.size() < bytes) {
    throw DecodeError("prefix", "there are " + std::to_string(src.size()) + " bytes, and " + std::to_string(bytes) +
                                    " stand before the others");
  }
  return src.subspan(bytes);
}

// The part of `src` that the filter enclosed.
In enclosed(const Filter& filter, In src) {
  if (filter.type == Type::prefix) return without_prefix(src, filter.element);
  return filter.type == Type::fletcher32 ? filters::check_fletcher32(src) : filters::check_crc32c(src);
}

std::size_t undo(const Filter& filter, In src, Out dst, Out workspace) {
  switch (filter.type) {
    case Type::byteswap:
      return filters::byteswap(src, dst, filter.element);
    case Type::shuffle:
      return filters::unshuffle(src, dst, filter.element);
    case Type::bitshuffle:
      return filters::unbitshuffle(src, dst, filter.element, filter.block);
    case Type::bitshuffle_lz4:
      return filters::unbitshuffle_blocks(src, dst, filter.element, Inner::lz4, workspace);
    case Type::bitshuffle_zstd:
      return filters::unbitshuffle_blocks(src, dst, filter.element, Inner::zstd, workspace);
    case Type::deflate:
      return filters::inflate(src, dst, workspace);
    case Type::lzf:
      return filters::unlzf(src, dst);
    case Type::lz4:
      return filters::unlz4(src, dst);
    case Type::lz4_blocks:
      return filters::unlz4_blocks(src, dst);
    case Type::zstd:
      return filters::unzstd(src, dst);
    case Type::blosc:
      return filters::unblosc(src, dst);
    case Type::fletcher32:
    case Type::crc32c:
    case Type::prefix:
      break;
  }
  throw std::logic_error("what only encloses bytes has nothing to undo");
}

}  // namespace

std::string_view name_of(Type type) noexcept {
  for (const auto& [known, name] : kNames) {
    if (known == type) return name;
  }
  return "unknown";
}

std::optional<Type> filter_named(std::string_view name) noexcept {
  for (const auto& [type, known] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

Chain::Chain(std::vector<Filter> filters) : filters_(std::move(filters)) {
  if (filters_.size() > kMostFilters) {
    throw std::invalid_argument("a chain has at most 32 filters, not " + std::to_string(filters_.size()));
  }
  std::for_each(filters_.begin(), filters_.end(), check);
}

std::size_t Chain::most_before(std::size_t k, std::size_t out_bytes, std::uint32_t skipped) const noexcept {
  constexpr std::size_t kChecksum = 4;
  std::size_t most = out_bytes;
  for (std::size_t j = 0; j < k; ++j) {
    if (skips(skipped, j) || keeps_size(filters_[j].type)) continue;
    if (filters_[j].type == Type::prefix) {
      most += filters_[j].element;
    } else {
      most +=
          is_checksum(filters_[j].type) ? kChecksum : most / 8 + 4096;  // no codec grows what it cannot shrink by more
    }
  }
  return most;
}

std::size_t Chain::workspace_bytes(std::size_t out_bytes) const noexcept {
  std::size_t bytes = 0;
  for (std::size_t k = 0; k < filters_.size(); ++k) {
    bytes = std::max(bytes, workspace_of(filters_[k], most_before(k, out_bytes, 0)));
  }
  return bytes;
}

//   scratch: | workspace of one filter | buffer 0 | buffer 1 |
// What is decoded goes to `out` in the last step, and before that from one buffer to the other.
std::size_t Chain::scratch_bytes(std::size_t out_bytes) const noexcept {
  if (filters_.empty()) return 0;
  const std::size_t most = most_before(filters_.size() - 1, out_bytes, 0);
  const std::size_t buffers = std::min<std::size_t>(filters_.size() - 1, 2);
  const std::size_t bytes = aligned(workspace_bytes(out_bytes)) + buffers * aligned(most);
  return bytes == 0 ? 0 : bytes + kAlign;
}

namespace {

// The parts of a decode's scratch memory.
class Scratch {
 public:
  Scratch(Out memory, std::size_t workspace, std::size_t buffer) : buffer_(buffer) {
    const std::size_t misfit = reinterpret_cast<std::uintptr_t>(memory.data()) % kAlign;
    const Out from = memory.empty() ? memory : memory.subspan(misfit == 0 ? 0 : kAlign - misfit);
    workspace_ = from.first(workspace);
    rest_ = from.subspan(workspace);
  }

  [[nodiscard]] Out workspace() const noexcept { return workspace_; }
  // The buffer that the last call did not give.
  [[nodiscard]] Out next_buffer(std::size_t bytes) noexcept { return rest_.subspan(turn_++ % 2 * buffer_, bytes); }

 private:
  std::size_t buffer_;
  std::size_t turn_ = 0;
  Out workspace_;
  Out rest_;
};

}  // namespace

void Chain::decode(In src, Out out, Out scratch, std::uint32_t skipped) const {
  if (scratch.size() < scratch_bytes(out.size())) {
    throw std::invalid_argument("decode() was given " + std::to_string(scratch.size()) +
                                " bytes of scratch; it needs " + std::to_string(scratch_bytes(out.size())));
  }
  const std::size_t most = filters_.empty() ? 0 : most_before(filters_.size() - 1, out.size(), 0);
  Scratch parts(scratch, aligned(workspace_bytes(out.size())), aligned(most));

  In data = src;
  Out writable;  // `data`, where it may be changed in place
  std::string_view last = "stored bytes";
  for (std::size_t k = filters_.size(); k-- > 0;) {
    if (skips(skipped, k)) continue;
    const Filter& filter = filters_[k];
    last = name_of(filter.type);
    if (encloses(filter.type)) {
      const In inside = enclosed(filter, data);
      if (!writable.empty()) {
        writable = writable.subspan(static_cast<std::size_t>(inside.data() - data.data()), inside.size());
      }
      data = inside;
      continue;
    }
    if (filter.type == Type::byteswap && !writable.empty()) {
      filters::byteswap(data, writable, filter.element);
      continue;
    }
    const Out to = ends_in_place(k, skipped) ? out : parts.next_buffer(most_before(k, out.size(), skipped));
    writable = to.first(undo(filter, data, to, parts.workspace()));
    data = writable;
  }
  if (data.size() != out.size()) {
    throw DecodeError(std::string(last), "gives " + std::to_string(data.size()) + " bytes where " +
                                             std::to_string(out.size()) + " are expected");
  }
  if (data.data() != out.data() && !out.empty()) std::memcpy(out.data(), data.data(), out.size());
}

// zlib-ng alone, as the first filter that is undone: its state lies in our scratch, and it holds each length and
// distance against its bounds, whatever bits come. Of the others Blosc allocates, and nothing says that they read a
// length but once.
bool Chain::may_read_mapped(std::uint32_t skipped) const noexcept {
  std::size_t k = filters_.size();
  while (k > 0 && skips(skipped, k - 1)) --k;
  return k > 0 && filters_[k - 1].type == Type::deflate;
}

bool Chain::ends_in_place(std::size_t k, std::uint32_t skipped) const noexcept {
  for (std::size_t j = 0; j < k; ++j) {
    if (!skips(skipped, j) && filters_[j].type != Type::byteswap) return false;
  }
  return true;
}

}  // namespace memload
