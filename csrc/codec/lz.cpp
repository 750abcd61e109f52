// LZF, LZ4 and Zstandard.
#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "codec/bytes.h"
#include "codec/chain.h"
#include "codec/filters.h"
#include "codec/foreign.h"

namespace memload::filters {

namespace {

std::string of(std::size_t position, std::size_t size) {
  return "byte " + std::to_string(position) + " of " + std::to_string(size);
}

struct FreeZstd {
  void operator()(ZSTD_DCtx_s* context) const noexcept { ZSTD_freeDCtx(context); }
};

// One for each thread that decodes, as long as the thread lives: about 100 KB. Whoever makes one asks the processor
// what it can do, which a hypervisor answers in microseconds: as long as a small block takes.
ZSTD_DCtx_s* zstd_context() {
  thread_local std::unique_ptr<ZSTD_DCtx_s, FreeZstd> context;
  if (!context) context.reset(ZSTD_createDCtx());
  if (!context) throw std::bad_alloc();
  return context.get();
}

}  // namespace

std::size_t lz4_block(const char* filter, In src, Out dst) {
  if (src.size() > INT_MAX || dst.size() > INT_MAX) throw DecodeError(filter, "a block of 2 GiB or more");
  const int bytes = LZ4_decompress_safe(reinterpret_cast<const char*>(src.data()), reinterpret_cast<char*>(dst.data()),
                                        static_cast<int>(src.size()), static_cast<int>(dst.size()));
  if (bytes < 0) {
    throw DecodeError(filter, "the block of " + std::to_string(src.size()) + " bytes is damaged (near " +
                                  of(static_cast<std::size_t>(-(bytes + 1)), src.size()) + "), or holds more than " +
                                  std::to_string(dst.size()));
  }
  return static_cast<std::size_t>(bytes);
}

// A control byte below 32 stands before that many literals and one; others are a length (3 bits, 7: one more byte) and
// a distance back (5 bits and the next byte).
std::size_t unlzf(In src, Out dst) {
  std::size_t in = 0;
  std::size_t out = 0;
  const auto take = [&] {
    if (in == src.size()) throw DecodeError("lzf", "the bytes end within a reference, after " + of(in, src.size()));
    return std::to_integer<std::size_t>(src[in++]);
  };
  const auto reserve = [&](std::size_t bytes) {
    if (bytes > dst.size() - out) {
      throw DecodeError("lzf", "there are more than the " + std::to_string(dst.size()) + " bytes that are expected");
    }
  };
  while (in < src.size()) {
    const std::size_t control = take();
    if (control < 32) {
      const std::size_t literals = control + 1;
      if (literals > src.size() - in) throw DecodeError("lzf", "the bytes end within literals");
      reserve(literals);
      std::memcpy(dst.data() + out, src.data() + in, literals);
      in += literals;
      out += literals;
      continue;
    }
    std::size_t length = control >> 5;
    if (length == 7) length += take();
    length += 2;
    const std::size_t distance = ((control & 31) << 8 | take()) + 1;
    if (distance > out) throw DecodeError("lzf", "a reference reaches before the first byte, at " + of(in, src.size()));
    reserve(length);
    std::byte* const to = dst.data() + out;
    if (distance >= length) {
      std::memcpy(to, to - distance, length);
    } else {
      for (std::size_t k = 0; k < length; ++k) to[k] = to[k - distance];  // a pattern that repeats
    }
    out += length;
  }
  return out;
}

std::size_t unlz4(In src, Out dst) {
  if (src.size() < 4) throw DecodeError("lz4", "there is no size before the block");
  const std::size_t bytes = little32(src);
  if (bytes > dst.size()) {
    throw DecodeError("lz4", "a block of " + std::to_string(bytes) + " bytes where at most " +
                                 std::to_string(dst.size()) + " are expected");
  }
  const std::size_t given = lz4_block("lz4", src.subspan(4), dst.first(bytes));
  if (given != bytes) {
    throw DecodeError("lz4", "the block gives " + std::to_string(given) + " bytes and says " + std::to_string(bytes));
  }
  return bytes;
}

//   | bytes: u64 | bytes of a block: u32 | { u32: stored bytes | stored bytes, as many as the block: no LZ4 } ... |
// All numbers big-endian.
std::size_t unlz4_blocks(In src, Out dst) {
  constexpr const char* kName = "lz4_blocks";
  if (src.size() < 12) throw DecodeError(kName, "the header is cut short");
  const std::uint64_t bytes = big64(src);
  const std::size_t block = big32(src.subspan(8));
  if (bytes > dst.size() || (block == 0 && bytes > 0)) {
    throw DecodeError(kName, "the header says " + std::to_string(bytes) + " bytes in blocks of " +
                                 std::to_string(block) + "; at most " + std::to_string(dst.size()) + " are expected");
  }
  std::size_t out = 0;
  for (In rest = src.subspan(12); out < bytes;) {
    const std::size_t wanted = std::min<std::size_t>(block, bytes - out);
    if (rest.size() < 4 || big32(rest) > rest.size() - 4) throw DecodeError(kName, "a block is cut short");
    const In stored = rest.subspan(4, big32(rest));
    const Out to = dst.subspan(out, wanted);
    if (stored.size() == wanted) {
      std::memcpy(to.data(), stored.data(), wanted);
    } else if (lz4_block(kName, stored, to) != wanted) {
      throw DecodeError(kName, "a block gives less than its " + std::to_string(wanted) + " bytes");
    }
    rest = rest.subspan(4 + stored.size());
    out += wanted;
  }
  return out;
}

std::size_t unzstd(In src, Out dst) {
  constexpr std::uint32_t kMagic = 0xFD2FB528;
  constexpr std::uint32_t kSkippable = 0x184D2A50;  // and the 15 after it
  // Frames of before Zstandard 0.8 are other formats, of which nobody has files.
  if (src.size() < 4 || (little32(src) != kMagic && (little32(src) & ~0xFU) != kSkippable)) {
    throw DecodeError("zstd", "there is no frame of Zstandard");
  }
  const std::size_t bytes = ZSTD_decompressDCtx(zstd_context(), dst.data(), dst.size(), src.data(), src.size());
  if (ZSTD_isError(bytes) != 0) {
    throw DecodeError("zstd", std::string(ZSTD_getErrorName(bytes)) + " (" + std::to_string(src.size()) +
                                  " bytes to decode to at most " + std::to_string(dst.size()) + ")");
  }
  return bytes;
}

}  // namespace memload::filters
