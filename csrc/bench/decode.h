// How fast this machine decodes, when nothing else is asked of it: each thread decodes every n-th part into memory of
// its own, over and over. No queue, no copy of rows, no Python.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/team.h"
#include "codec/chain.h"

namespace memload::bench {

// Encoded bytes, which whoever asks keeps mapped, and how many they decode to.
struct EncodedPart {
  std::span<const std::byte> stored;
  std::size_t bytes = 0;
};

struct DecodeRun {
  TeamTime time;
  std::size_t parts = 0;
  std::size_t bytes = 0;  // decoded
};

struct DecodeTerms {
  std::size_t threads = 1;
  double seconds = 0;          // about so long, and at least all parts once
  std::size_t ring_bytes = 0;  // memory of all threads, gone round; less than a part: one part's, which stays in cache
};

// zlib-ng itself over zlib or gzip streams, each stream set back instead of made anew. Throws std::runtime_error for a
// part that is not such a stream of its size.
[[nodiscard]] DecodeRun inflate_rate(std::span<const EncodedPart> parts, const DecodeTerms& terms);

// The same through a chain of filters. Throws DecodeError.
[[nodiscard]] DecodeRun decode_rate(const Chain& chain, std::span<const EncodedPart> parts, const DecodeTerms& terms);

}  // namespace memload::bench
