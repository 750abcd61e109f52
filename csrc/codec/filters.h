// One function per filter, for chain.cpp and encode.cpp alone. Each reads `src`, writes at most dst.size() bytes to
// `dst`, returns how many it wrote, and throws DecodeError. `workspace` is at a multiple of 64 and has what the
// filter's *_workspace() asks for, or is said here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace memload::filters {

using In = std::span<const std::byte>;
using Out = std::span<std::byte>;

[[nodiscard]] std::size_t inflate_workspace() noexcept;
std::size_t inflate(In src, Out dst, Out workspace);

std::size_t unlzf(In src, Out dst);
std::size_t unlz4(In src, Out dst);
std::size_t lz4_block(const char* filter, In src, Out dst);  // without a size before it; `filter` is for the error
std::size_t unlz4_blocks(In src, Out dst);

std::size_t unzstd(In src, Out dst);

std::size_t unblosc(In src, Out dst);

std::size_t unshuffle(In src, Out dst, std::size_t element);
std::size_t unbitshuffle(In src, Out dst, std::size_t element, std::size_t block);

// Blocks of HDF5's bitshuffle plugin, each compressed. The workspace holds one decoded block: at most dst.size() bytes.
enum class Inner : std::uint8_t { lz4, zstd };
std::size_t unbitshuffle_blocks(In src, Out dst, std::size_t element, Inner inner, Out workspace);

// The way there, for encode.cpp; dst has the size of src.
void shuffle(In src, Out dst, std::size_t element);
void bitshuffle(In src, Out dst, std::size_t element, std::size_t block);

// Once, before anything else of c-blosc2 that works on chunks.
void ready_blosc() noexcept;

// src and dst may be the same bytes.
std::size_t byteswap(In src, Out dst, std::size_t element);

// The bytes without the checksum behind them.
In check_fletcher32(In src);
In check_crc32c(In src);

[[nodiscard]] std::uint32_t fletcher32(In bytes) noexcept;
[[nodiscard]] std::uint32_t crc32c(In bytes) noexcept;

}  // namespace memload::filters
