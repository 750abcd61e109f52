// The interface of readers. Columns come in kinds; each has a reader, which plans a batch once and then fills any part
// of it from any thread:
//
//   rows --plan()--> FieldPlan: bytes of the slot, work --fill(begin, end)--> slot
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "core/base/memory.h"
#include "core/io/storage.h"

namespace memload {

class Uring;

// How fill() reads rows that are not in the page cache, and the memory that it works in. `ask` and `scratch` cost a
// system call per row and serve cold data.
struct ColdReads {
  bool ask = false;                // the kernel is asked for rows of a page or more as a whole
  std::span<std::byte> scratch{};  // large rows are read into it, past the page cache: kScratch bytes, or none
  // Storages that are always read past the page cache are read into `memory`, kScratch bytes or none, with many reads
  // at once by `past`, or one by one without it.
  std::span<std::byte> memory{};
  Uring* past = nullptr;
  std::span<std::byte> workspace{};  // at least the reader's workspace_bytes(), aligned to 64
};

// What fill() found out while it read.
struct Filled {
  bool in_cache = true;            // all bytes were in the page cache, as far as fill() looked
  std::size_t direct_bytes = 0;    // read past the page cache
  std::size_t cached_bytes = 0;    // copied out of the caches of storages
  std::size_t resident_reads = 0;  // reads that were left out, since their bytes were in the page cache
  std::size_t decoded_tiles = 0;   // decompressed
  std::size_t reused_bytes = 0;    // stored, of tiles that were kept decoded and not read again
  bool refused = false;            // a file cannot be read past the page cache
  std::chrono::nanoseconds decoding{};
};

// An array that a field puts into the slot: the elements of its rows first, then, for some kinds, int64 numbers.
struct Output {
  std::size_t offset = 0;  // in the field's share of the slot, a multiple of 64
  std::int64_t rows = 0;   // length of its first axis
};

// The plan of one field of a batch, which is worked out once and then read by all who fill it. Kinds derive from it.
struct FieldPlan {
  static constexpr std::size_t kMostOutputs = 2;

  virtual ~FieldPlan() = default;

  std::size_t bytes = 0;     // of the slot
  std::size_t work = 0;      // units by which fill() is cut: bytes for most kinds, so that pieces cost alike
  std::size_t bytes_in = 0;  // read for it
  bool in_order = false;     // work counts bytes of the slot: after the first n units the first n bytes are done
  std::array<Output, kMostOutputs> outputs{};
};

// Immutable; any number of threads may call it at once.
class FieldReader {
 public:
  // Rows above this size are large: a disk gives them at nearly its full rate one by one.
  static constexpr std::size_t kLargeRow = std::size_t{64} << 10;
  static constexpr std::size_t kAlign = kArrayAlign;
  // Bytes of the memory for direct reads: one huge page, which is a single piece for the disk's driver.
  static constexpr std::size_t kScratch = kHugePage;

  // Facts about the files behind a field, for the pipeline.
  struct Files {
    bool past_cache = false;      // some files are always read past the page cache; the next ones count all others
    bool mapped = false;          // some files are mapped
    bool large_rows = false;      // some hold rows of more than kLargeRow bytes, each one run: direct reads suit them
    bool small_rows = false;      // some hold other rows
    bool knows_residency = true;  // resident() tells the truth for all of them
  };

  using Stored = std::function<void(const Storage& storage, const std::byte* at, std::size_t n)>;

  virtual ~FieldReader() = default;

  [[nodiscard]] virtual std::int64_t rows() const noexcept = 0;
  [[nodiscard]] virtual std::size_t outputs() const noexcept { return 1; }
  [[nodiscard]] virtual std::size_t row_bytes() const noexcept = 0;  // read for a row, on average
  [[nodiscard]] virtual Files files() const noexcept = 0;
  // Bytes of the workspace of each thread that fills.
  [[nodiscard]] virtual std::size_t workspace_bytes() const noexcept { return 0; }

  // The most bytes that a batch of so many rows takes in its slot. Throws std::length_error for more than can be
  // addressed.
  [[nodiscard]] virtual std::size_t bound(std::size_t rows) const = 0;

  // Whether plan() needs the seeds of the rows.
  [[nodiscard]] virtual bool draws() const noexcept { return false; }

  // The seed of each row of a batch; empty for readers that draw nothing.
  using Seeds = std::span<const std::uint64_t>;

  // Plans a batch of these rows, which lie in [0, rows()) and outlive the plan. Throws std::length_error as bound()
  // does.
  [[nodiscard]] virtual std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows,
                                                              Seeds seeds) const = 0;

  // Does the share [begin, end) of the plan's work. The field's share of the slot begins at `out`, which is aligned to
  // kAlign. begin and end are 0, plan.work, multiples of kAlign, or results of edge(); units that cannot be cut belong
  // to the share in which they begin. Throws ReadError if a file cannot be read.
  virtual void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                    Filled& found) const = 0;

  // Gives the place to cut the work instead of `at`, so that the bytes of one read stay whole: large rows, and runs of
  // storages that are always read past the page cache. A larger `at` gives no smaller edge.
  [[nodiscard]] virtual std::size_t edge(const FieldPlan&, std::size_t at) const noexcept { return at; }

  // Calls `each` with the stored bytes of these rows, in order.
  virtual void visit(std::span<const std::int64_t> rows, const Stored& each) const = 0;

  // Calls `each` with every storage behind the field, some perhaps more than once.
  virtual void visit_storages(const std::function<void(const Storage&)>& each) const = 0;
};

// A reader of rows that are made of rows of another reader, "frames", which several rows may share. They are read
// through the page cache, however large they are: the next row wants them.
class FramesReader : public FieldReader {
 public:
  [[nodiscard]] Files files() const noexcept final {
    Files files = frames_->files();
    files.small_rows = files.mapped;
    files.large_rows = false;
    return files;
  }
  void visit_storages(const std::function<void(const Storage&)>& each) const final { frames_->visit_storages(each); }

 protected:
  explicit FramesReader(std::unique_ptr<const FieldReader> frames) : frames_(std::move(frames)) {}

  [[nodiscard]] const FieldReader& frames() const noexcept { return *frames_; }
  // The bound of so many rows of so many frames each.
  [[nodiscard]] std::size_t bound_of(std::size_t rows, std::size_t frames_of_row) const {
    std::size_t frames = 0;
    if (__builtin_mul_overflow(rows, frames_of_row, &frames)) return batch_bytes(rows, row_bytes());
    return frames_->bound(frames);
  }

 private:
  std::unique_ptr<const FieldReader> frames_;
};

}  // namespace memload
