// Rows of columns -> one contiguous batch: the copy, or the cast that the copy does on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cast/cast.h"
#include "core/column.h"
#include "core/memory.h"

namespace memload {

// One field of a batch: where its rows lie and what becomes of their elements. Without a cast, bytes are copied.
struct FieldSpec {
  std::shared_ptr<const Column> column;
  std::optional<CastRule> cast;
};

// Where the fields of a batch of `rows` rows lie in a slot, each at a multiple of 64:
//
//   slot: | field 0: rows x out_row_bytes | pad | field 1: ... | pad | ...
struct BatchLayout {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
};

// What fill() does about rows that are not in the page cache, beyond reading the mapping. Both cost a system call per
// row and are for cold data.
struct ColdReads {
  bool ask = false;                // rows of a page or more are asked for as a whole
  std::span<std::byte> scratch{};  // large rows are read into it, past the page cache: Gather::kScratch bytes, or none
};

// What fill() found.
struct Filled {
  bool in_cache = true;            // all was in the page cache, as far as it was looked at
  std::size_t direct_bytes = 0;    // read past the page cache
  std::size_t resident_reads = 0;  // reads that could be left out, since their bytes were in the page cache
  bool refused = false;            // a file cannot be read past the page cache
};

// Immutable; any number of threads may fill parts of batches at once.
class Gather {
 public:
  static constexpr std::size_t kAlign = 64;
  // Rows above this size are large: a disk gives them at nearly its full rate one by one.
  static constexpr std::size_t kLargeRow = std::size_t{64} << 10;
  // What direct reads need. One huge page: in a single piece of memory, so that the disk's driver has little to do.
  static constexpr std::size_t kScratch = kHugePage;

  // Throws std::invalid_argument if the columns differ in length, a cast has no implementation, or a row is not a whole
  // number of elements.
  Gather(std::vector<FieldSpec> fields, Isa isa, Store store);

  [[nodiscard]] std::size_t fields() const noexcept { return fields_.size(); }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t in_row_bytes() const noexcept { return in_row_bytes_; }  // read per row, all fields
  [[nodiscard]] std::size_t out_row_bytes(std::size_t field) const noexcept { return fields_[field].out_row_bytes; }
  // Throws std::length_error if such a batch could not be addressed.
  [[nodiscard]] BatchLayout layout(std::size_t rows) const;
  [[nodiscard]] bool maps_files() const noexcept { return maps_files_; }
  // Whether files hold rows of more, or of at most, kLargeRow bytes.
  [[nodiscard]] bool maps_large_rows() const noexcept { return maps_large_rows_; }
  [[nodiscard]] bool maps_small_rows() const noexcept { return maps_small_rows_; }
  // Whether resident() tells the truth for all files.
  [[nodiscard]] bool knows_residency() const noexcept { return knows_residency_; }

  // Writes bytes [begin, end) of the slot that will hold the batch of `rows`; begin and end are multiples of 64, the
  // layout's end, or what row_edge() gives. rows lie in [0, rows()). Throws ReadError if a file cannot be read.
  Filled fill(std::span<const std::int64_t> rows, const BatchLayout& layout, std::byte* slot, std::size_t begin,
              std::size_t end, const ColdReads& cold = {}) const;

  // Where to cut a batch of so many rows instead of at `at`, so that large rows which one read can give stay whole. A
  // larger `at` gives no smaller edge.
  [[nodiscard]] std::size_t row_edge(std::size_t rows, const BatchLayout& layout, std::size_t at) const noexcept;

  // Asks for the bytes of these rows ahead of fill(), without waiting; neighbours are asked for together. small_only:
  // but not for large rows.
  void advise(std::span<const std::int64_t> rows, bool small_only = false) const noexcept;

  // Reads the 2 MB blocks that hold these rows, each at most once, and waits for them.
  void read_blocks(std::span<const std::int64_t> rows) const noexcept;

  // Prepares all files for advise(), or with `blocks` for read_blocks().
  void expect_random_reads(bool blocks) const noexcept;

  // Whether the first byte of this row's every field is in the page cache.
  [[nodiscard]] bool resident(std::int64_t row) const noexcept;

 private:
  struct Field {
    std::shared_ptr<const Column> column;
    CopyFn kernel;  // copies bytes or casts elements: both have the signature (src, dst, n)
    std::size_t in_size;
    std::size_t out_size;  // bytes per element; 1 and 1 for a copy
    std::size_t out_row_bytes;

    [[nodiscard]] bool large() const noexcept { return column->row_bytes() > kLargeRow; }
  };
  class Part;

  std::vector<Field> fields_;
  std::int64_t rows_ = 0;
  std::size_t in_row_bytes_ = 0;
  bool maps_files_ = false;
  bool maps_large_rows_ = false;
  bool maps_small_rows_ = false;
  bool knows_residency_ = true;
  Store store_;
};

// Copies these rows to `out`, one after the other, on the calling thread. Throws std::out_of_range and ReadError.
void gather_rows(const std::shared_ptr<const Column>& column, std::span<const std::int64_t> rows, std::byte* out);

}  // namespace memload
