// Gathers rows of columns into one contiguous batch, by a copy or by a cast on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/memory.h"
#include "core/gather/make_reader.h"
#include "core/readers/field_reader.h"

namespace memload {

// The layout of a batch: where each field lies in the slot, at a multiple of 64, and which share of the work it is.
//
//   slot: | field 0: plan->bytes | pad | field 1: ... | pad | ...
//   work: | field 0: plan->work  | pad | field 1: ... | pad | ...
struct BatchLayout {
  struct Share {
    std::unique_ptr<const FieldPlan> plan;
    std::size_t offset;  // in the slot
    std::size_t work;    // where the field's work begins
  };
  std::vector<Share> shares;
  std::size_t bytes = 0;
  std::size_t work = 0;

  [[nodiscard]] std::size_t bytes_in() const noexcept;   // that are read for it
  [[nodiscard]] std::size_t bytes_out() const noexcept;  // that are written for it: those of the slot without padding
};

// Immutable; any number of threads may fill parts of batches at once.
class Gather {
 public:
  static constexpr std::size_t kAlign = FieldReader::kAlign;
  static constexpr std::size_t kLargeRow = FieldReader::kLargeRow;
  static constexpr std::size_t kScratch = FieldReader::kScratch;

  // Throws std::invalid_argument if the columns differ in length, a cast has no implementation, or a row is not a whole
  // number of elements.
  Gather(const std::vector<FieldSpec>& fields, Isa isa, Store store);

  [[nodiscard]] std::size_t fields() const noexcept { return fields_.size(); }
  // Number of arrays that the field puts into the slot.
  [[nodiscard]] std::size_t outputs(std::size_t field) const noexcept { return fields_[field].reader->outputs(); }
  [[nodiscard]] std::int64_t rows() const noexcept { return fields_.front().reader->rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }  // read per row on average, all fields
  // Bytes of the workspace of each thread that fills.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept;
  // Facts about the files behind all fields.
  [[nodiscard]] const FieldReader::Files& files() const noexcept { return files_; }

  // The most bytes that a batch of so many rows takes. Throws std::length_error if such a batch could not be addressed.
  [[nodiscard]] std::size_t slot_bytes(std::size_t rows) const;
  // Lays out the batch of these rows, which lie in [0, rows()) and outlive the layout. What is random follows from each
  // row and the key of the pass. Throws as slot_bytes() does.
  [[nodiscard]] BatchLayout layout(std::span<const std::int64_t> rows, std::uint64_t pass_key = 0) const;

  // The arrays of a batch, field by field; their offsets are those in the slot.
  [[nodiscard]] std::vector<Output> outputs(const BatchLayout& layout) const;

  // Does the share [begin, end) of the work for a batch in this slot. begin and end are multiples of 64, the end of the
  // work, or results of row_edge(). Throws ReadError if a file cannot be read.
  Filled fill(const BatchLayout& layout, std::byte* slot, std::size_t begin, std::size_t end,
              const ColdReads& cold = {}) const;

  // Gives the place to cut the work instead of `at`, so that large rows which one read can give stay whole. A larger
  // `at` gives no smaller edge.
  [[nodiscard]] std::size_t row_edge(const BatchLayout& layout, std::size_t at) const noexcept;

  // Looks at one of the files, whose turn it is by `number`, after these rows were filled. Throws ReadError if the file
  // was cut short and one of the rows is gone. Reads do not notice this: the kernel shows zeros for the rest of the
  // page in which the file now ends, and raises nothing.
  void check_file(std::size_t number, std::span<const std::int64_t> rows) const;
  // Looks at the files whose turn may have come too late. Throws ReadError if one was cut short.
  void check_files() const;
  // Throws NotFetched if bytes of one of these rows were not fetched from where they come from. It is asked before the
  // rows are read, and costs nothing unless some storage has a mirror. `held` is that of Storage::require().
  void check_fetched(std::span<const std::int64_t> rows, bool held = true) const;
  // Calls `each` with the stored bytes of these rows, field by field.
  void visit(std::span<const std::int64_t> rows, const FieldReader::Stored& each) const;
  // Throws ReadError if one of these rows reaches past the present end of its file.
  void check_rows(std::span<const std::int64_t> rows) const;

  // Asks the kernel for the bytes of these rows ahead of fill(), without waiting, and for neighbours together.
  // small_only: it does not ask for large rows.
  void advise(std::span<const std::int64_t> rows, bool small_only = false) const;

  // Reads the 2 MB blocks that hold these rows, each at most once, and waits for them.
  void read_blocks(std::span<const std::int64_t> rows) const;

  // Prepares all files for advise(), or with `blocks` for read_blocks().
  void expect_random_reads(bool blocks) const;

  // Whether the first byte of each field of this row is in the page cache.
  [[nodiscard]] bool resident(std::int64_t row) const;

 private:
  struct Field {
    std::unique_ptr<const FieldReader> reader;
    FieldReader::Files files;
  };
  std::vector<Field> fields_;
  bool draws_ = false;    // whether some field does
  bool mirrors_ = false;  // whether some storage has a mirror
  std::size_t row_bytes_ = 0;
  FieldReader::Files files_;
  std::vector<std::shared_ptr<const Storage>> mapped_;  // each once
  Store store_;
};

// Copies these rows to `out`, one after the other, with the cast of the field, on the calling thread. Throws
// std::out_of_range, ReadError, and std::invalid_argument if the rows do not fill `out` exactly. `held` is that of
// Storage::require().
void gather_rows(const FieldSpec& field, std::span<const std::int64_t> rows, std::span<std::byte> out,
                 Isa isa = Isa::scalar, bool held = true);

}  // namespace memload
