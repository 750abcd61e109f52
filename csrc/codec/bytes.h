// Numbers as they lie in files. The span holds at least as many bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace memload::filters {

[[nodiscard]] inline std::uint32_t byteswapped(std::uint32_t v) noexcept { return __builtin_bswap32(v); }
[[nodiscard]] inline std::uint64_t byteswapped(std::uint64_t v) noexcept { return __builtin_bswap64(v); }

template <class T>
[[nodiscard]] T loaded(std::span<const std::byte> bytes, bool little) noexcept {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return little == (std::endian::native == std::endian::little) ? value : byteswapped(value);
}

[[nodiscard]] inline std::uint32_t little32(std::span<const std::byte> b) noexcept {
  return loaded<std::uint32_t>(b, true);
}
[[nodiscard]] inline std::uint32_t big32(std::span<const std::byte> b) noexcept {
  return loaded<std::uint32_t>(b, false);
}
[[nodiscard]] inline std::uint64_t big64(std::span<const std::byte> b) noexcept {
  return loaded<std::uint64_t>(b, false);
}

inline void store_little32(std::byte* to, std::uint32_t value) noexcept {
  if (std::endian::native == std::endian::big) value = byteswapped(value);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace memload::filters
