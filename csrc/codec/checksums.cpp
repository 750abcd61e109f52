// The checksums that HDF5 and Zarr put behind a chunk.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "codec/bytes.h"
#include "codec/chain.h"
#include "codec/filters.h"

namespace memload::filters {

namespace {

std::string hex(std::uint32_t value) {
  std::array<char, 11> text{};
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

// Eight tables for eight bytes at a time; polynomial 0x1EDC6F41 (Castagnoli), reflected.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[t - 1][byte];
      tables[t][byte] = (before >> 8) ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}();

In without(const char* filter, In src) {
  if (src.size() < 4) throw DecodeError(filter, "there is no checksum behind the bytes");
  return src.first(src.size() - 4);
}

[[noreturn]] void differs(const char* filter, std::uint32_t stored, std::uint32_t found) {
  throw DecodeError(filter, "the bytes have the checksum " + hex(found) + "; " + hex(stored) + " was stored");
}

}  // namespace

// Sums of big-endian 16-bit words, modulo 65535 (J. G. Fletcher, 1982), folded before 32 bits run over.
std::uint32_t fletcher32(In bytes) noexcept {
  constexpr std::size_t kRun = 360;
  const auto fold = [](std::uint32_t sum) { return (sum & 0xFFFFU) + (sum >> 16); };
  std::uint32_t sum = 0;
  std::uint32_t sum_of_sums = 0;
  const std::size_t words = bytes.size() / 2;
  for (std::size_t k = 0; k < words;) {
    for (const std::size_t end = std::min(words, k + kRun); k < end; ++k) {
      sum += std::to_integer<std::uint32_t>(bytes[2 * k]) << 8 | std::to_integer<std::uint32_t>(bytes[2 * k + 1]);
      sum_of_sums += sum;
    }
    sum = fold(sum);
    sum_of_sums = fold(sum_of_sums);
  }
  if (bytes.size() % 2 != 0) {
    sum += std::to_integer<std::uint32_t>(bytes.back()) << 8;
    sum_of_sums += sum;
    sum = fold(sum);
    sum_of_sums = fold(sum_of_sums);
  }
  return fold(sum_of_sums) << 16 | fold(sum);
}

std::uint32_t crc32c(In bytes) noexcept {
  std::uint32_t crc = 0xFFFFFFFFU;
  std::size_t at = 0;
  for (; bytes.size() - at >= 8; at += 8) {
    const std::uint32_t low = little32(bytes.subspan(at)) ^ crc;
    const std::uint32_t high = little32(bytes.subspan(at + 4));
    crc = kTables[7][low & 0xFFU] ^ kTables[6][low >> 8 & 0xFFU] ^ kTables[5][low >> 16 & 0xFFU] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xFFU] ^ kTables[2][high >> 8 & 0xFFU] ^
          kTables[1][high >> 16 & 0xFFU] ^ kTables[0][high >> 24];
  }
  for (; at < bytes.size(); ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(bytes[at])) & 0xFFU];
  }
  return ~crc;
}

// HDF5 before 1.6.3 stored the sums of little-endian words on little-endian machines; both are right.
In check_fletcher32(In src) {
  const In bytes = without("fletcher32", src);
  const std::uint32_t stored = little32(src.subspan(bytes.size()));
  const std::uint32_t found = fletcher32(bytes);
  const std::uint32_t of_old = (found & 0x00FF00FFU) << 8 | (found >> 8 & 0x00FF00FFU);
  if (stored != found && stored != of_old) differs("fletcher32", stored, found);
  return bytes;
}

In check_crc32c(In src) {
  const In bytes = without("crc32c", src);
  const std::uint32_t stored = little32(src.subspan(bytes.size()));
  const std::uint32_t found = crc32c(bytes);
  if (stored != found) differs("crc32c", stored, found);
  return bytes;
}

}  // namespace memload::filters
