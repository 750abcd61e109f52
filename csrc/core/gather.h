// Rows of columns -> one contiguous batch: the copy, or the cast that the copy does on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/field_reader.h"
#include "core/memory.h"

namespace memload {

// A batch, field by field: where each lies in the slot, each at a multiple of 64, and which share of the work it is.
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

  [[nodiscard]] std::size_t bytes_in() const noexcept;   // read for it
  [[nodiscard]] std::size_t bytes_out() const noexcept;  // written for it: those of the slot without what lies between
};

// Immutable; any number of threads may fill parts of batches at once.
class Gather {
 public:
  static constexpr std::size_t kAlign = FieldReader::kAlign;
  static constexpr std::size_t kLargeRow = FieldReader::kLargeRow;
  // What direct reads need. One huge page: in a single piece of memory, so that the disk's driver has little to do.
  static constexpr std::size_t kScratch = kHugePage;

  // Throws std::invalid_argument if the columns differ in length, a cast has no implementation, or a row is not a whole
  // number of elements.
  Gather(const std::vector<FieldSpec>& fields, Isa isa, Store store);

  [[nodiscard]] std::size_t fields() const noexcept { return fields_.size(); }
  // How many arrays the field puts into the slot.
  [[nodiscard]] std::size_t outputs(std::size_t field) const noexcept { return fields_[field].reader->outputs(); }
  [[nodiscard]] std::int64_t rows() const noexcept { return fields_.front().reader->rows(); }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }  // read per row on average, all fields
  // What each thread that fills needs to work in.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept;
  // What the pipeline has to know of the files behind all fields.
  [[nodiscard]] const FieldReader::Files& files() const noexcept { return files_; }

  // The most bytes that a batch of so many rows takes. Throws std::length_error if such a batch could not be addressed.
  [[nodiscard]] std::size_t slot_bytes(std::size_t rows) const;
  // The batch of these rows, which lie in [0, rows()) and outlive the layout. Throws as slot_bytes() does.
  [[nodiscard]] BatchLayout layout(std::span<const std::int64_t> rows) const;

  // The arrays of a batch, field by field; their offsets are those in the slot.
  [[nodiscard]] std::vector<Output> outputs(const BatchLayout& layout) const;

  // Does the share [begin, end) of the work for a batch in this slot; begin and end are multiples of 64, the end of
  // the work, or what row_edge() gives. Throws ReadError if a file cannot be read.
  Filled fill(const BatchLayout& layout, std::byte* slot, std::size_t begin, std::size_t end,
              const ColdReads& cold = {}) const;

  // Where to cut the work instead of at `at`, so that large rows which one read can give stay whole. A larger `at`
  // gives no smaller edge.
  [[nodiscard]] std::size_t row_edge(const BatchLayout& layout, std::size_t at) const noexcept;

  // Of the page in which a mapped file ends after it was cut short, the kernel shows zeros, and raises nothing. So,
  // after these rows were filled: looks at one of the files, whose turn it is by `number`, and if it was cut, throws
  // ReadError if one of the rows is gone.
  void check_file(std::size_t number, std::span<const std::int64_t> rows) const;
  // Throws ReadError if a file was cut whose turn may have come too late.
  void check_files() const;
  // Throws ReadError if one of these rows reaches past the end that its file has now.
  void check_rows(std::span<const std::int64_t> rows) const;

  // Asks for the bytes of these rows ahead of fill(), without waiting; neighbours are asked for together. small_only:
  // but not for large rows.
  void advise(std::span<const std::int64_t> rows, bool small_only = false) const;

  // Reads the 2 MB blocks that hold these rows, each at most once, and waits for them.
  void read_blocks(std::span<const std::int64_t> rows) const;

  // Prepares all files for advise(), or with `blocks` for read_blocks().
  void expect_random_reads(bool blocks) const;

  // Whether the first byte of this row's every field is in the page cache.
  [[nodiscard]] bool resident(std::int64_t row) const;

 private:
  struct Field {
    std::unique_ptr<const FieldReader> reader;
    FieldReader::Files files;
  };
  std::vector<Field> fields_;
  std::size_t row_bytes_ = 0;
  FieldReader::Files files_;
  std::vector<std::shared_ptr<const Storage>> mapped_;  // each once
  Store store_;
};

// Copies these rows to `out`, one after the other, cast if asked, on the calling thread. Throws std::out_of_range,
// ReadError, and std::invalid_argument if they do not just fill it.
void gather_rows(const FieldSpec& field, std::span<const std::int64_t> rows, std::span<std::byte> out,
                 Isa isa = Isa::scalar);

}  // namespace memload
