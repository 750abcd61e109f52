// Chains of filters: literal bytes of other writers, the identity of our own, and what is damaged.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "codec/chain.h"
#include "codec/encode.h"
#include "tests/check.h"

namespace {

using memload::Chain;
using memload::DecodeError;
using memload::Effort;
using memload::encode;
using memload::Filter;
using Type = Filter::Type;
using Bytes = std::vector<std::byte>;

Bytes bytes(std::initializer_list<unsigned> values) {
  Bytes all;
  for (const unsigned value : values) all.push_back(static_cast<std::byte>(value));
  return all;
}

Bytes decoded(const Chain& chain, const Bytes& src, std::size_t size, std::uint32_t skipped = 0) {
  Bytes out(size);
  Bytes scratch(chain.scratch_bytes(size));
  chain.decode(src, out, scratch, skipped);
  return out;
}

// 0 1 2 3 4 5 6 7, four times.
Bytes four_runs() {
  Bytes all(32);
  for (std::size_t k = 0; k < all.size(); ++k) all[k] = static_cast<std::byte>(k % 8);
  return all;
}

Bytes noisy(std::size_t size, unsigned seed = 1) {
  std::mt19937 random(seed);
  Bytes all(size);
  for (std::size_t k = 0; k < size; ++k) all[k] = static_cast<std::byte>(k / 7 + random() % 5);
  return all;
}

const Bytes kZlib = bytes(
    {0x78, 0xda, 0x63, 0x60, 0x64, 0x62, 0x66, 0x61, 0x65, 0x63, 0x67, 0xc0, 0x41, 0x03, 0x00, 0x06, 0xb0, 0x00, 0x71});
const Bytes kGzip =
    bytes({0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x63, 0x60, 0x64, 0x62, 0x66, 0x61,
           0x65, 0x63, 0x67, 0xc0, 0x41, 0x03, 0x00, 0x3d, 0xfc, 0xfd, 0xb1, 0x20, 0x00, 0x00, 0x00});
const Bytes kZstd = bytes({0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x20, 0x75, 0x00, 0x00, 0x40, 0x00, 0x01,
                           0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x01, 0x00, 0x03, 0x0b, 0x17});
const Bytes kLz4 = bytes({0x20, 0x00, 0x00, 0x00, 0x8f, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05,
                          0x06, 0x07, 0x08, 0x00, 0x00, 0x50, 0x03, 0x04, 0x05, 0x06, 0x07});
const Bytes kLzf =
    bytes({0x08, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x00, 0xe0, 0x0c, 0x07, 0x01, 0x06, 0x07});
// Of zeros, by Blosc 2: a chunk without blocks.
const Bytes kBloscZeros =
    bytes({0x05, 0x01, 0x95, 0x08, 0x20, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00,
           0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10});

Bytes blosc1_header() {
  return bytes({0x02, 0x01, 0x33, 0x02, 0x20, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x30, 0x00, 0x00, 0x00});
}

Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string message(const Chain& chain, const Bytes& src, std::size_t size) {
  try {
    static_cast<void>(decoded(chain, src, size));
  } catch (const DecodeError& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(bytes_of_other_writers_are_decoded) {
  CHECK(decoded(Chain({{Type::deflate}}), kZlib, 32) == four_runs());
  CHECK(decoded(Chain({{Type::deflate}}), kGzip, 32) == four_runs());
  CHECK(decoded(Chain({{Type::zstd}}), kZstd, 32) == four_runs());
  CHECK(decoded(Chain({{Type::lz4}}), kLz4, 32) == four_runs());
  CHECK(decoded(Chain({{Type::lzf}}), kLzf, 32) == four_runs());
  CHECK(decoded(Chain({{Type::blosc}}), joined(blosc1_header(), four_runs()), 32) == four_runs());
  CHECK(decoded(Chain({{Type::blosc}}), kBloscZeros, 32) == Bytes(32));
}

TEST(joined_gzip_members_count_as_one_and_what_follows_a_stream_is_ignored) {
  CHECK(decoded(Chain({{Type::deflate}}), joined(kGzip, kGzip), 64) == joined(four_runs(), four_runs()));
  CHECK(decoded(Chain({{Type::deflate}}), joined(kZlib, bytes({1, 2, 3})), 32) == four_runs());
}

TEST(shuffles_of_a_few_elements_are_as_their_formats_say) {
  const Bytes src = bytes({1, 2, 3, 10, 20, 30, 7});  // low bytes, high bytes, a rest
  CHECK(decoded(Chain({{Type::shuffle, 2}}), src, 7) == bytes({1, 10, 2, 20, 3, 30, 7}));
  CHECK(decoded(Chain({{Type::byteswap, 4}}), bytes({1, 2, 3, 4, 5}), 5) == bytes({4, 3, 2, 1, 5}));
  CHECK(decoded(Chain({{Type::byteswap, 3}}), bytes({1, 2, 3, 4, 5, 6}), 6) == bytes({3, 2, 1, 6, 5, 4}));
  // Bit 0 of eight elements, bit 1 of them, ...; then an element that finds no seven others.
  CHECK(decoded(Chain({{Type::bitshuffle, 1}}), bytes({0x81, 0x02, 0, 0, 0, 0, 0, 0xff, 9}), 9) ==
        bytes({0x81, 0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x81, 9}));
}

TEST(checksums_are_those_of_hdf5_and_zarr) {
  const Bytes abcde = bytes({0x61, 0x62, 0x63, 0x64, 0x65});
  CHECK(decoded(Chain({{Type::fletcher32}}), joined(abcde, bytes({0xc7, 0x29, 0xf0, 0x4f})), 5) == abcde);
  const Bytes digits = bytes({0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39});  // RFC 3720: 0xE3069283
  CHECK(decoded(Chain({{Type::crc32c}}), joined(digits, bytes({0x83, 0x92, 0x06, 0xe3})), 9) == digits);
  CHECK(contains(message(Chain({{Type::crc32c}}), joined(digits, bytes({0x83, 0x92, 0x06, 0xe4})), 9), "0xe4069283"));
  CHECK_THROWS(DecodeError, decoded(Chain({{Type::fletcher32}}), joined(abcde, bytes({0xc7, 0x29, 0xf0, 0x4e})), 5));
}

TEST(what_stands_before_the_bytes_is_left_out) {
  const Bytes src = bytes({9, 9, 9, 1, 2, 3, 4});
  CHECK(decoded(Chain({{Type::prefix, 3}}), src, 4) == bytes({1, 2, 3, 4}));
  CHECK(decoded(Chain({{Type::byteswap, 2}, {Type::prefix, 3}}), src, 4) == bytes({2, 1, 4, 3}));
  CHECK(decoded(Chain({{Type::prefix, 1}, {Type::prefix, 2}}), src, 4) == bytes({1, 2, 3, 4}));
  const Bytes runs = four_runs();
  CHECK(decoded(Chain({{Type::prefix, 5}, {Type::deflate}}), kGzip, 27) == Bytes(runs.begin() + 5, runs.end()));
  CHECK(contains(message(Chain({{Type::prefix, 8}}), src, 4), "there are 7 bytes, and 8 stand before"));
  CHECK(contains(message(Chain({{Type::prefix, 2}}), src, 4), "gives 5 bytes where 4 are expected"));
  CHECK_THROWS(std::invalid_argument, Chain({{Type::prefix, 0}}));
  CHECK_THROWS(std::invalid_argument, Chain({{Type::prefix, (1U << 24) + 1}}));
}

std::vector<std::vector<Filter>> written_chains(std::uint32_t element) {
  std::vector<std::vector<Filter>> chains{{}};
  const std::vector<std::vector<Filter>> first{{},
                                               {{Type::shuffle, element}},
                                               {{Type::bitshuffle, element}},
                                               {{Type::byteswap, element}},
                                               {{Type::byteswap, element}, {Type::shuffle, element}}};
  const std::vector<std::vector<Filter>> last{{},
                                              {{Type::lz4}},
                                              {{Type::zstd}},
                                              {{Type::blosc, std::min(element, 255U)}},
                                              {{Type::zstd}, {Type::crc32c}},
                                              {{Type::fletcher32}, {Type::lz4}}};
  for (const auto& a : first) {
    for (const auto& b : last) {
      chains.push_back(a);
      chains.back().insert(chains.back().end(), b.begin(), b.end());
    }
  }
  return chains;
}

TEST(what_was_encoded_decodes_to_itself_at_any_size_and_alignment) {
  for (const std::uint32_t element : {1U, 2U, 3U, 4U, 8U, 16U, 300U}) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{64}, std::size_t{1000}, std::size_t{40'003}}) {
      const Bytes raw = noisy(size, element);
      for (const auto& filters : written_chains(element)) {
        const Chain chain(filters);
        for (const auto shuffle : {Effort::Shuffle::none, Effort::Shuffle::bit}) {
          const Bytes stored = encode(chain, raw, {1, Effort::Inner::zstd, shuffle});
          Bytes scratch(chain.scratch_bytes(size) + 1);
          Bytes out(size + 1);
          chain.decode(stored, std::span(out).subspan(1), std::span(scratch).subspan(1));
          CHECK(std::equal(raw.begin(), raw.end(), out.begin() + 1));
        }
      }
    }
  }
}

// As the upper bytes of small numbers behind their lowest ones. A match's distance stands before the 255s of its
// length.
TEST(long_runs_of_one_byte_are_written_to_be_repeated_from_one_byte_back) {
  const Chain lz4({{Type::lz4}});
  for (std::size_t noise = 600; noise < 8000; noise += 700) {
    std::mt19937 random(1);
    Bytes raw(noise + 12'000);
    std::generate_n(raw.begin(), noise, [&] { return static_cast<std::byte>(random()); });
    for (const int level : {1, 2, 9}) {
      const Bytes stored = encode(lz4, raw, {level});
      CHECK(decoded(lz4, stored, raw.size()) == raw);
      const Bytes length(40, std::byte{255});
      const auto at = std::search(stored.begin(), stored.end(), length.begin(), length.end());
      CHECK(at != stored.end() && *(at - 2) == std::byte{1} && *(at - 1) == std::byte{0});
    }
  }
}

TEST(more_bytes_than_are_expected_never_leave_the_output) {
  for (const Type type : {Type::byteswap, Type::shuffle, Type::bitshuffle}) {
    CHECK_THROWS(DecodeError, decoded(Chain({{type, 2}}), noisy(100), 60));
  }
}

TEST(filters_that_were_skipped_are_not_undone) {
  const Bytes raw = noisy(1000);
  const Chain whole({{Type::shuffle, 2}, {Type::zstd}, {Type::crc32c}});
  CHECK(decoded(whole, encode(Chain({{Type::zstd}, {Type::crc32c}}), raw, {}), 1000, 0b001) == raw);
  CHECK(decoded(whole, encode(Chain({{Type::shuffle, 2}, {Type::crc32c}}), raw, {}), 1000, 0b010) == raw);
  CHECK(decoded(whole, raw, 1000, 0b111) == raw);
  CHECK_THROWS(DecodeError, decoded(whole, raw, 999, 0b111));
}

TEST(a_wrong_size_is_told_with_both_sizes) {
  const Bytes raw = noisy(1000);
  for (const Type type : {Type::zstd, Type::lz4, Type::blosc}) {
    const Chain chain({{type}});
    const Bytes stored = encode(chain, raw, {});
    CHECK_THROWS(DecodeError, decoded(chain, stored, 999));
    CHECK(contains(message(chain, stored, 1001), "1001"));
  }
  CHECK(contains(message(Chain({{Type::deflate}}), kZlib, 33), "gives 32 bytes where 33 are expected"));
  CHECK(contains(message(Chain({{Type::deflate}}), kZlib, 31), "more than the 31 bytes"));
  CHECK(contains(message(Chain({{Type::lzf}}), kLzf, 31), "more than the 31 bytes"));
}

TEST(every_prefix_and_every_changed_byte_is_decoded_or_refused) {
  const std::vector<std::pair<Filter, Bytes>> cases{
      {{Type::deflate}, kZlib},     {{Type::deflate}, kGzip},
      {{Type::zstd}, kZstd},        {{Type::lz4}, kLz4},
      {{Type::lzf}, kLzf},          {{Type::blosc}, joined(blosc1_header(), four_runs())},
      {{Type::blosc}, kBloscZeros}, {{Type::blosc}, encode(Chain({{Type::blosc}}), four_runs(), {})}};
  for (const auto& [filter, stored] : cases) {
    const Chain chain({filter});
    for (std::size_t n = 0; n < stored.size(); ++n) {
      CHECK_THROWS(DecodeError,
                   decoded(chain, Bytes(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(n)), 33));
      for (unsigned value = 0; value < 256; ++value) {
        Bytes changed = stored;
        changed[n] = static_cast<std::byte>(value);
        try {
          static_cast<void>(decoded(chain, changed, 32));
        } catch (const DecodeError&) {
        }
      }
    }
  }
}

TEST(chunks_that_lead_elsewhere_are_refused) {
  const auto with = [](std::size_t at, unsigned value) {
    Bytes chunk = kBloscZeros;
    chunk[at] = static_cast<std::byte>(value);
    return chunk;
  };
  const Chain blosc({{Type::blosc}});
  CHECK(contains(message(blosc, with(31, 0x18), 32), "in another file"));
  CHECK(contains(message(blosc, with(31, 0x11), 32), "dictionary"));
  CHECK(contains(message(blosc, with(16, 35), 32), "filter 35"));
  Bytes chunk = with(31, 0x00);
  chunk[2] = std::byte{0xd5};  // a codec of a plug-in
  CHECK(contains(message(blosc, chunk, 32), "a codec of another's"));
  chunk = joined(blosc1_header(), four_runs());
  chunk[2] = std::byte{0x51};
  CHECK(contains(message(blosc, chunk, 32), "Snappy"));
}

TEST(misuse_is_told_before_anything_is_decoded) {
  CHECK_THROWS(std::invalid_argument, Chain({{Type::shuffle, 0}}));
  CHECK_THROWS(std::invalid_argument, Chain({{Type::bitshuffle, 2, 12}}));
  CHECK_THROWS(std::invalid_argument, Chain(std::vector<Filter>(33, Filter{Type::zstd})));
  CHECK_THROWS(std::invalid_argument, encode(Chain({{Type::deflate}}), four_runs(), {}));
  CHECK_THROWS(std::invalid_argument, encode(Chain({{Type::lz4}}), four_runs(), {13}));
  CHECK_THROWS(std::invalid_argument, encode(Chain({{Type::zstd}}), four_runs(), {23}));
  const Chain chain({{Type::deflate}});
  Bytes out(32);
  CHECK_THROWS(std::invalid_argument, chain.decode(kZlib, out, {}));
  CHECK_EQ(Chain({}).scratch_bytes(100), std::size_t{0});
}

TEST(many_threads_decode_with_one_chain) {
  const Chain chain({{Type::bitshuffle, 2}, {Type::zstd}, {Type::crc32c}});
  const Chain blosc({{Type::blosc, 2}});
  const Bytes raw = noisy(20'000);
  const Bytes stored = encode(chain, raw, {});
  const Bytes chunk = encode(blosc, raw, {5, Effort::Inner::lz4, Effort::Shuffle::byte});
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int k = 0; k < 20; ++k) {
          if (decoded(chain, stored, raw.size()) == raw && decoded(blosc, chunk, raw.size()) == raw) ++right;
        }
      });
    }
  }
  CHECK_EQ(right.load(), 80);
}

}  // namespace

int main() { return memload::test::run(); }
