// What we call of the libraries inside libblosc2.a (c-blosc2's static library from the wheel `blosc2`), which come
// without their headers. After zlib-ng 2.3 (zlib-ng.h), LZ4 1.10 (lz4.h), Zstandard 1.5 (zstd.h).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// zlib-ng, native API: sizes of 32 bits, 64-bit totals.
struct zng_stream {
  const std::uint8_t* next_in;
  std::uint32_t avail_in;
  std::size_t total_in;
  std::uint8_t* next_out;
  std::uint32_t avail_out;
  std::size_t total_out;
  const char* msg;
  void* state;
  void* (*zalloc)(void* opaque, unsigned items, unsigned size);
  void (*zfree)(void* opaque, void* address);
  void* opaque;
  int data_type;
  std::uint32_t adler;
  unsigned long reserved;
};
std::int32_t zng_inflateInit2(zng_stream* stream, std::int32_t window_bits);
std::int32_t zng_inflate(zng_stream* stream, std::int32_t flush);
std::int32_t zng_inflateReset(zng_stream* stream);
std::int32_t zng_inflateEnd(zng_stream* stream);

int LZ4_compressBound(int bytes);
int LZ4_compress_fast(const char* src, char* dst, int src_bytes, int dst_bytes, int acceleration);
int LZ4_compress_HC(const char* src, char* dst, int src_bytes, int dst_bytes, int level);
int LZ4_decompress_safe(const char* src, char* dst, int src_bytes, int dst_bytes);

struct ZSTD_DCtx_s;
ZSTD_DCtx_s* ZSTD_createDCtx();
std::size_t ZSTD_freeDCtx(ZSTD_DCtx_s* context);
std::size_t ZSTD_decompressDCtx(ZSTD_DCtx_s* context, void* dst, std::size_t dst_bytes, const void* src,
                                std::size_t src_bytes);
std::size_t ZSTD_compressBound(std::size_t bytes);
std::size_t ZSTD_compress(void* dst, std::size_t dst_bytes, const void* src, std::size_t src_bytes, int level);
unsigned ZSTD_isError(std::size_t code);
const char* ZSTD_getErrorName(std::size_t code);
}
