// zlib and gzip streams, by zlib-ng, whose state lies in the caller's memory.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <type_traits>

#include "codec/chain.h"
#include "codec/filters.h"
#include "codec/foreign.h"

namespace memload::filters {

namespace {

constexpr std::int32_t kOk = 0;
constexpr std::int32_t kStreamEnd = 1;
constexpr std::int32_t kNeedsDictionary = 2;
constexpr std::int32_t kNoProgress = -5;
constexpr std::int32_t kFinish = 4;            // all there is in one call: no window is kept for the next
constexpr std::int32_t kZlibOrGzip = 15 + 32;  // windows of 32 KB; the first bytes tell the wrapping
constexpr std::size_t kAlign = 64;

// What zlib-ng allocates comes from here, one after the other.
struct Arena {
  Out memory;
  std::size_t used = 0;

  static void* take(void* opaque, unsigned items, unsigned size) {
    auto* arena = static_cast<Arena*>(opaque);
    const std::size_t bytes = (std::size_t{items} * size + kAlign - 1) / kAlign * kAlign;
    if (bytes > arena->memory.size() - arena->used) return nullptr;
    std::byte* const address = arena->memory.data() + arena->used;
    arena->used += bytes;
    return address;
  }
  static void give(void* /*opaque*/, void* /*address*/) {}
};

// How much it takes is its own affair, and asked once.
std::size_t measure() noexcept {
  std::size_t taken = 0;
  zng_stream stream{};
  stream.opaque = &taken;
  stream.zalloc = [](void* opaque, unsigned items, unsigned size) {
    *static_cast<std::size_t*>(opaque) += std::size_t{items} * size + 2 * kAlign;
    return std::malloc(std::size_t{items} * size);
  };
  stream.zfree = [](void*, void* address) { std::free(address); };
  if (zng_inflateInit2(&stream, kZlibOrGzip) == kOk) zng_inflateEnd(&stream);
  return taken;
}

std::uint32_t part(std::size_t bytes) noexcept {
  return static_cast<std::uint32_t>(std::min(bytes, std::size_t{1} << 30));
}

class Inflation {
 public:
  Inflation(In src, Out dst, Out workspace) : src_(src), dst_(dst), arena_{workspace} {
    stream_.opaque = &arena_;
    stream_.zalloc = Arena::take;
    stream_.zfree = Arena::give;
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(src.data());
    stream_.next_out = dst.empty() ? &nothing_ : reinterpret_cast<std::uint8_t*>(dst.data());
    if (zng_inflateInit2(&stream_, kZlibOrGzip) != kOk) throw std::bad_alloc();
  }

  std::size_t run() {
    while (true) {
      stream_.avail_in = part(unread());
      stream_.avail_out = part(dst_.size() - written());
      const bool all = stream_.avail_in == unread() && stream_.avail_out == dst_.size() - written();
      const std::int32_t result = zng_inflate(&stream_, all ? kFinish : 0);
      if (result == kStreamEnd) {
        if (!another_member()) return written();
        zng_inflateReset(&stream_);
      } else if (result != kOk || (stream_.avail_in == 0 && unread() == 0) || written() == dst_.size()) {
        fail(result);
      }
    }
  }

 private:
  [[nodiscard]] std::size_t read() const noexcept {
    return static_cast<std::size_t>(stream_.next_in - reinterpret_cast<const std::uint8_t*>(src_.data()));
  }
  [[nodiscard]] std::size_t unread() const noexcept { return src_.size() - read(); }
  [[nodiscard]] std::size_t written() const noexcept {
    return dst_.empty() ? 0 : static_cast<std::size_t>(reinterpret_cast<std::byte*>(stream_.next_out) - dst_.data());
  }
  // gzip files may be joined; whatever else follows a stream is ignored, as HDF5 does.
  [[nodiscard]] bool another_member() const noexcept {
    return unread() >= 18 && src_[read()] == std::byte{0x1f} && src_[read() + 1] == std::byte{0x8b};
  }

  [[noreturn]] void fail(std::int32_t result) const {
    if (result == kOk || result == kNoProgress) {
      if (written() == dst_.size() && unread() > 0) {
        throw DecodeError("deflate",
                          "the stream holds more than the " + std::to_string(dst_.size()) + " bytes that are expected");
      }
      throw DecodeError("deflate", "the stream is cut short: " + std::to_string(src_.size()) + " bytes give " +
                                       std::to_string(written()) + " of " + std::to_string(dst_.size()));
    }
    if (result == kNeedsDictionary) throw DecodeError("deflate", "the stream needs a dictionary, which is not known");
    const std::string reason = stream_.msg != nullptr ? stream_.msg : "zlib error " + std::to_string(result);
    throw DecodeError("deflate",
                      reason + " (byte " + std::to_string(read()) + " of " + std::to_string(src_.size()) + ")");
  }

  In src_;
  Out dst_;
  Arena arena_;
  std::uint8_t nothing_ = 0;
  zng_stream stream_{};
};

static_assert(std::is_trivially_destructible_v<Inflation>);  // a jump may leave it: Chain::may_read_mapped()

}  // namespace

std::size_t inflate_workspace() noexcept {
  static const std::size_t bytes = measure();
  return bytes;
}

std::size_t inflate(In src, Out dst, Out workspace) {
  if (src.empty()) throw DecodeError("deflate", "there are no bytes");
  return Inflation(src, dst, workspace).run();
}

}  // namespace memload::filters
