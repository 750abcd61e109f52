// Damages encoded bytes for a while and decodes them: DecodeError or bytes, nothing else, under the sanitizers.
//
//     fuzz_codec SECONDS [SEED] [FILE...]
//
// Its corpus are chunks that it encodes itself, and the FILEs. Each round takes one, damages it, and gives it to one
// chain. A round that fails is told by its number and the seed, with which it comes again.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <vector>

#include "codec/chain.h"
#include "codec/encode.h"
#include "fuzz/mutate.h"

namespace {

using memload::Chain;
using memload::DecodeError;
using memload::Effort;
using memload::Filter;
using memload::fuzz::Mutator;
using Type = Filter::Type;
using Bytes = std::vector<std::byte>;

std::vector<Chain> chains() {
  std::vector<Chain> all;
  for (const Type type : {Type::deflate, Type::lzf, Type::lz4, Type::lz4_blocks, Type::zstd, Type::blosc}) {
    all.emplace_back(std::vector<Filter>{{type}});
    all.emplace_back(std::vector<Filter>{{Type::byteswap, 2}, {Type::shuffle, 2}, {type}});
    all.emplace_back(std::vector<Filter>{{Type::fletcher32}, {type}});
    all.emplace_back(std::vector<Filter>{{type}, {Type::zstd}});
    all.emplace_back(std::vector<Filter>{{Type::byteswap, 2}, {Type::prefix, 5}, {type}});
  }
  for (const Type type : {Type::bitshuffle, Type::bitshuffle_lz4, Type::bitshuffle_zstd, Type::shuffle}) {
    for (const std::uint32_t element : {1U, 2U, 4U, 7U}) all.emplace_back(std::vector<Filter>{{type, element}});
  }
  all.emplace_back(std::vector<Filter>{{Type::crc32c}});
  return all;
}

std::vector<Bytes> corpus(Mutator& random) {
  std::vector<Bytes> all{{std::byte{0x78}, std::byte{0xda}, std::byte{0x63}, std::byte{0x60}, std::byte{0x64},
                          std::byte{0x62}, std::byte{0x66}, std::byte{0x61}, std::byte{0x65}, std::byte{0x63},
                          std::byte{0x67}, std::byte{0xc0}, std::byte{0x41}, std::byte{0x03}, std::byte{0x00},
                          std::byte{0x06}, std::byte{0xb0}, std::byte{0x00}, std::byte{0x71}}};
  for (const std::size_t size : {std::size_t{0}, std::size_t{40}, std::size_t{700}, std::size_t{9000}}) {
    Bytes raw(size);
    for (std::byte& byte : raw) byte = static_cast<std::byte>(random.below(6) * 40);
    for (const Type type : {Type::lz4, Type::zstd, Type::blosc}) {
      for (const auto shuffle : {Effort::Shuffle::none, Effort::Shuffle::byte, Effort::Shuffle::bit}) {
        for (const auto inner : {Effort::Inner::blosclz, Effort::Inner::lz4, Effort::Inner::zstd}) {
          all.push_back(encode(Chain({{type, 2}}), raw, {5, inner, shuffle}));
        }
      }
    }
    all.push_back(std::move(raw));
  }
  return all;
}

void add_files(std::vector<Bytes>& all, int count, char** paths) {
  for (int k = 0; k < count; ++k) {
    std::ifstream file(paths[k], std::ios::binary);
    const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
    Bytes bytes(content.size());
    std::transform(content.begin(), content.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
    all.push_back(std::move(bytes));
  }
}

void decode_once(const Chain& chain, const Bytes& src, std::size_t out_bytes, std::uint32_t skipped) {
  Bytes out(out_bytes);
  Bytes scratch(chain.scratch_bytes(out_bytes));
  try {
    chain.decode(src, out, scratch, skipped);
  } catch (const DecodeError&) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  Mutator random(seed);
  const std::vector<Chain> all = chains();
  std::vector<Bytes> seeds = corpus(random);
  add_files(seeds, std::max(0, argc - 3), argv + 3);
  std::uint64_t round = 0;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
       std::chrono::steady_clock::now() < end; ++round) {
    const Bytes src = random.mutated(seeds[random.below(seeds.size())], seeds[random.below(seeds.size())]);
    const std::size_t sizes[] = {0, 1, 32, 40, 700, 9000, random.below(20'000)};
    try {
      decode_once(all[random.below(all.size())], src, sizes[random.below(std::size(sizes))],
                  random.below(8) == 0 ? static_cast<std::uint32_t>(random.below(8)) : 0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "round %llu of seed %llu: %s\n", static_cast<unsigned long long>(round),
                   static_cast<unsigned long long>(seed), error.what());
      return 1;
    }
  }
  std::printf("%llu rounds\n", static_cast<unsigned long long>(round));
  return 0;
}
