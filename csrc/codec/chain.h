// The filters that stand between an array and its stored bytes, and the way back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace memload {

// Stored bytes are not what their filter writes. Which file, row or chunk they are of is for the caller to add.
class DecodeError : public std::runtime_error {
 public:
  DecodeError(std::string filter, const std::string& reason)
      : std::runtime_error(filter + ": " + reason), filter_(std::move(filter)) {}

  [[nodiscard]] const std::string& filter() const noexcept { return filter_; }

 private:
  std::string filter_;
};

struct Filter {
  enum class Type : std::uint8_t {
    byteswap,    // each element's bytes in reverse; a rest of less than an element stays
    shuffle,     // first bytes of all elements, then their second ones, ...; a rest of less than an element follows
    bitshuffle,  // the same by bits, block by block, as the bitshuffle library and HDF5's plugin 32008 without codec do
    bitshuffle_lz4,   // HDF5's plugin 32008 with LZ4: each block shuffled, then compressed
    bitshuffle_zstd,  // the same with Zstd
    deflate,          // zlib or gzip, told by the first bytes; several gzip members count as one
    lzf,              // LibLZF, as h5py writes it
    lz4,              // 4 bytes of decoded size, little-endian, then one LZ4 block, as numcodecs writes it
    lz4_blocks,       // HDF5's plugin 32004
    zstd,             // frames of Zstandard, with or without their size
    blosc,            // one chunk of Blosc 1 or 2
    fletcher32,       // the bytes, then HDF5's checksum of them
    crc32c,           // the bytes, then their CRC-32C, little-endian, as Zarr 3 writes it
    prefix,           // others in front of the bytes, such as the header of a file that is compressed as a whole
  };

  Type type;
  std::uint32_t element = 0;  // bytes of an element: byteswap, shuffle, bitshuffle*; encoding with blosc; of a prefix
  std::uint32_t block = 0;    // elements in a block: bitshuffle without codec; 0: as many as the library takes

  friend bool operator==(const Filter&, const Filter&) = default;
};

[[nodiscard]] std::string_view name_of(Filter::Type type) noexcept;
[[nodiscard]] std::optional<Filter::Type> filter_named(std::string_view name) noexcept;

// Filters in the order in which the writer applied them. Immutable: any number of threads may decode at once.
class Chain {
 public:
  static constexpr std::size_t kMostFilters = 32;  // what HDF5 allows, and a mask of 32 bits tells

  // Throws std::invalid_argument for too many filters, or an element or block that such a filter cannot have.
  explicit Chain(std::vector<Filter> filters);

  [[nodiscard]] const std::vector<Filter>& filters() const noexcept { return filters_; }

  // Undoes the filters from the last to the first. Bit k of `skipped` says that filter k was not applied to these bytes
  // (HDF5's filter mask). Gives exactly out.size() bytes, or throws DecodeError; then what is in `out` is undefined.
  // src, out and scratch do not overlap. Memory: `scratch`, and for Blosc a few of its blocks, of which none is larger
  // than the chunk. Throws std::invalid_argument if scratch has less than scratch_bytes(out.size()).
  void decode(std::span<const std::byte> src, std::span<std::byte> out, std::span<std::byte> scratch,
              std::uint32_t skipped = 0) const;

  // Whether decode() may read `src` from a mapped file: it holds nothing that outlives a jump out of it when a page
  // cannot be read, and bytes that change meanwhile give other bytes, or a DecodeError, and no more.
  [[nodiscard]] bool may_read_mapped(std::uint32_t skipped = 0) const noexcept;

  // What decode() needs for so many bytes of output; more for more. Any alignment will do.
  [[nodiscard]] std::size_t scratch_bytes(std::size_t out_bytes) const noexcept;

 private:
  // The most bytes that filter k's input may be decoded to, which is what filter k - 1 wrote.
  [[nodiscard]] std::size_t most_before(std::size_t k, std::size_t out_bytes, std::uint32_t skipped) const noexcept;
  // Whether what filter k gives may lie in the output at once, since no filter before it needs a place of its own.
  [[nodiscard]] bool ends_in_place(std::size_t k, std::uint32_t skipped) const noexcept;
  // The most bytes that any filter of the chain needs for its own state.
  [[nodiscard]] std::size_t workspace_bytes(std::size_t out_bytes) const noexcept;

  std::vector<Filter> filters_;
};

}  // namespace memload
