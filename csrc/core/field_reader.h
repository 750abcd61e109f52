// One field of a batch: what its bytes are made of, and how threads make parts of them.
//
// Columns come in kinds. Each has a reader, which plans a batch once and then fills any part of it from any thread:
//
//   rows --plan()--> FieldPlan: bytes of the slot, work --fill(begin, end)--> slot
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "cast/affine.h"
#include "cast/cast.h"
#include "core/storage.h"

namespace memload {

class Column;
class Ragged;
class Tiles;
class Uring;
class Windows;

// The kinds of columns: rows that are one run of bytes each, rows inside tiles, overlapping windows of frames, and rows
// that differ in length.
using AnyColumn = std::variant<std::shared_ptr<const Column>, std::shared_ptr<const Tiles>,
                               std::shared_ptr<const Windows>, std::shared_ptr<const Ragged>>;

// One field of a batch: where its rows lie and what becomes of their elements. Without a cast, bytes are copied.
struct FieldSpec {
  AnyColumn column;
  std::optional<CastRule> cast;
  std::shared_ptr<const Affine> affine{};  // the constants of a cast that has any
};

// What fill() does about rows that are not in the page cache, beyond reading the mapping. Both cost a system call per
// row and are for cold data. And the memory that it works in.
struct ColdReads {
  bool ask = false;                // rows of a page or more are asked for as a whole
  std::span<std::byte> scratch{};  // large rows are read into it, past the page cache: Gather::kScratch bytes, or none
  // What storages that are always read past the page cache are read into, Gather::kScratch bytes, and with how many
  // reads at once: none, and one by one, without.
  std::span<std::byte> memory{};
  Uring* past = nullptr;
  std::span<std::byte> workspace{};  // at least the reader's workspace_bytes(), aligned to 64
};

// What fill() found.
struct Filled {
  bool in_cache = true;            // all was in the page cache, as far as it was looked at
  std::size_t direct_bytes = 0;    // read past the page cache
  std::size_t cached_bytes = 0;    // copied out of the caches of storages
  std::size_t resident_reads = 0;  // reads that could be left out, since their bytes were in the page cache
  bool refused = false;            // a file cannot be read past the page cache
  std::chrono::nanoseconds decoding{};
};

// An array that a field puts into the slot: the elements of its rows first, then, for some kinds, int64 numbers.
struct Output {
  std::size_t offset = 0;  // in the field's share of the slot, a multiple of 64
  std::int64_t rows = 0;   // length of its first axis
};

// What a batch asks of one field, worked out once and then read by all who fill it. Kinds derive from it.
struct FieldPlan {
  static constexpr std::size_t kMostOutputs = 2;

  virtual ~FieldPlan() = default;

  std::size_t bytes = 0;     // of the slot
  std::size_t work = 0;      // what fill() is cut by: bytes for most kinds, so that pieces are of like cost
  std::size_t bytes_in = 0;  // read for it
  bool in_order = false;     // work counts bytes of the slot: once the first n of it are done, so are the first n bytes
  std::array<Output, kMostOutputs> outputs{};
};

// Immutable; any number of threads may call it at once.
class FieldReader {
 public:
  // Rows above this size are large: a disk gives them at nearly its full rate one by one.
  static constexpr std::size_t kLargeRow = std::size_t{64} << 10;
  static constexpr std::size_t kAlign = 64;

  // What the pipeline has to know of the files behind a field.
  struct Files {
    bool past_cache = false;      // there are some that are always read past the page cache; those below are others
    bool mapped = false;          // there are any
    bool large_rows = false;      // that hold rows of more than kLargeRow bytes, each one run: to be read directly
    bool small_rows = false;      // that hold other rows
    bool knows_residency = true;  // resident() tells the truth for all of them
  };

  using Stored = std::function<void(const Storage& storage, const std::byte* at, std::size_t n)>;

  virtual ~FieldReader() = default;

  [[nodiscard]] virtual std::int64_t rows() const noexcept = 0;
  [[nodiscard]] virtual std::size_t outputs() const noexcept { return 1; }
  [[nodiscard]] virtual std::size_t row_bytes() const noexcept = 0;  // read for a row, on average
  [[nodiscard]] virtual Files files() const noexcept = 0;
  // What each thread that fills needs to work in.
  [[nodiscard]] virtual std::size_t workspace_bytes() const noexcept { return 0; }

  // The most bytes that a batch of so many rows takes in its slot. Throws std::length_error if that cannot be
  // addressed.
  [[nodiscard]] virtual std::size_t bound(std::size_t rows) const = 0;

  // rows lie in [0, rows()) and outlive the plan. Throws std::length_error as bound() does.
  [[nodiscard]] virtual std::unique_ptr<const FieldPlan> plan(std::span<const std::int64_t> rows) const = 0;

  // Does the share [begin, end) of the plan's work. `out` is where the field's share of the slot begins, aligned to
  // kAlign. begin and end are 0, plan.work, multiples of kAlign, or what edge() gives; units that cannot be cut belong
  // to the share in which they begin. Throws ReadError if a file cannot be read.
  virtual void fill(const FieldPlan& plan, std::byte* out, std::size_t begin, std::size_t end, const ColdReads& cold,
                    Filled& found) const = 0;

  // Where to cut the work instead of at `at`, so that what one read can give stays whole: large rows, and runs of
  // storages that are always read past the page cache. A larger `at`
  // gives no smaller edge.
  [[nodiscard]] virtual std::size_t edge(const FieldPlan&, std::size_t at) const noexcept { return at; }

  // Calls `each` with the stored bytes of these rows, in order.
  virtual void visit(std::span<const std::int64_t> rows, const Stored& each) const = 0;

  // Calls `each` with every storage behind the field, some perhaps more than once.
  virtual void visit_storages(const std::function<void(const Storage&)>& each) const = 0;
};

// rows x row_bytes. Throws std::length_error if no batch can be so large.
[[nodiscard]] std::size_t batch_bytes(std::size_t rows, std::size_t row_bytes);

[[nodiscard]] std::int64_t rows_of(const AnyColumn& column) noexcept;
[[nodiscard]] std::size_t row_bytes_of(const AnyColumn& column) noexcept;

// The reader of a field of any kind. Throws std::invalid_argument if the cast has no implementation, has constants
// while the rows are not one run of bytes each, or a row is not a whole number of elements.
[[nodiscard]] std::unique_ptr<const FieldReader> make_reader(const FieldSpec& field, Isa isa, Store store);

// All rows of the first, then of the second, and so on. Throws std::invalid_argument if they do not fit together.
[[nodiscard]] AnyColumn concat(std::span<const AnyColumn> columns);

}  // namespace memload
