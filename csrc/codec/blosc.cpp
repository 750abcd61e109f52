// One chunk of Blosc 1 or 2, by c-blosc2. Its header is read here first: c-blosc2 would also follow a chunk to other
// files and to plug-ins that it starts programs to find.
#include <cstring>
#include <string>

#include "blosc2.h"
#include "codec/blosc_context.h"
#include "codec/bytes.h"
#include "codec/chain.h"
#include "codec/filters.h"

namespace memload::filters {

namespace {

constexpr std::size_t kShortHeader = BLOSC_MIN_HEADER_LENGTH;
constexpr std::size_t kLongHeader = BLOSC_EXTENDED_HEADER_LENGTH;

struct Header {
  std::size_t bytes;
  std::size_t stored_bytes;
  bool uninitialised;
};

unsigned at(In src, std::size_t k) { return std::to_integer<unsigned>(src[k]); }

[[noreturn]] void refuse(const std::string& reason) { throw DecodeError("blosc", reason); }

void check_codec(In src) {
  constexpr unsigned kSnappy = 2;
  const unsigned codec = at(src, BLOSC2_CHUNK_FLAGS) >> 5;
  if (codec == kSnappy) refuse("the chunk is compressed by Snappy, which c-blosc2 does not have");
  if (codec != BLOSC_BLOSCLZ_LIB && codec != BLOSC_LZ4_LIB && codec != BLOSC_ZLIB_LIB && codec != BLOSC_ZSTD_LIB) {
    refuse("the chunk is compressed by a codec of another's, number " + std::to_string(codec));
  }
}

// What only chunks with the long header, of Blosc 2, may ask for.
void check_extras(In src) {
  constexpr unsigned kLazy = 0x08;
  for (std::size_t k = 0; k < BLOSC2_MAX_FILTERS; ++k) {
    const unsigned filter = at(src, BLOSC2_CHUNK_FILTER_CODES + k);
    if (filter != BLOSC_NOFILTER && filter != BLOSC_SHUFFLE && filter != BLOSC_BITSHUFFLE &&
        filter != BLOSC_TRUNC_PREC) {
      refuse("the chunk has filter " + std::to_string(filter) + "; only byte and bit shuffles are decoded");
    }
  }
  const unsigned flags = at(src, BLOSC2_CHUNK_BLOSC2_FLAGS);
  if ((flags & kLazy) != 0) refuse("the chunk's blocks lie in another file");
  if ((flags & BLOSC2_USEDICT) != 0) refuse("the chunk has a dictionary, which is not decoded");
  if ((flags & (BLOSC2_INSTR_CODEC | BLOSC2_BIGENDIAN)) != 0 || at(src, BLOSC2_CHUNK_BLOSC2_FLAGS2) != 0) {
    refuse("the chunk has flags that are not decoded");
  }
}

Header header_of(In src) {
  constexpr unsigned kLong = BLOSC_DOSHUFFLE | BLOSC_DOBITSHUFFLE;
  if (src.size() < kShortHeader) refuse("the header is cut short");
  const bool is_long = (at(src, BLOSC2_CHUNK_FLAGS) & kLong) == kLong;
  if (is_long && src.size() < kLongHeader) refuse("the header is cut short");
  const std::size_t bytes = little32(src.subspan(BLOSC2_CHUNK_NBYTES));
  const std::size_t block = little32(src.subspan(BLOSC2_CHUNK_BLOCKSIZE));
  const std::size_t stored = little32(src.subspan(BLOSC2_CHUNK_CBYTES));
  if (stored > src.size() || stored < (is_long ? kLongHeader : kShortHeader)) {
    refuse("the header says " + std::to_string(stored) + " stored bytes; there are " + std::to_string(src.size()));
  }
  if (bytes > 0 && (block == 0 || block > bytes)) {
    refuse("the header says blocks of " + std::to_string(block) + " bytes in " + std::to_string(bytes));
  }
  const unsigned special = is_long ? at(src, BLOSC2_CHUNK_BLOSC2_FLAGS) >> 4 & 7U : 0;
  if (special == 0) check_codec(src);
  if (is_long) check_extras(src);
  return {bytes, stored, special == BLOSC2_SPECIAL_UNINIT};
}

}  // namespace

void ready_blosc() noexcept {
  static const bool ready = (blosc2_init(), true);
  static_cast<void>(ready);
}

std::size_t unblosc(In src, Out dst) {
  const Header header = header_of(src);
  if (header.bytes > dst.size() || header.bytes > BLOSC2_MAX_BUFFERSIZE || header.stored_bytes > INT32_MAX) {
    refuse("a chunk of " + std::to_string(header.bytes) + " bytes where at most " + std::to_string(dst.size()) +
           " are expected");
  }
  if (header.bytes == 0) return 0;
  if (header.uninitialised) std::memset(dst.data(), 0, header.bytes);
  ready_blosc();
  blosc2_dparams params = BLOSC2_DPARAMS_DEFAULTS;
  params.nthreads = 1;
  const BloscContext context(blosc2_create_dctx(params));
  if (!context) throw std::bad_alloc();
  const int given = blosc2_decompress_ctx(context.get(), src.data(), static_cast<std::int32_t>(header.stored_bytes),
                                          dst.data(), static_cast<std::int32_t>(header.bytes));
  if (given < 0 || static_cast<std::size_t>(given) != header.bytes) {
    refuse("the chunk is damaged: " + std::string(given < 0 ? blosc2_error_string(given) : "it gives too little"));
  }
  return header.bytes;
}

}  // namespace memload::filters
