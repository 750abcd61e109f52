// The ceiling: how fast this machine gathers (and casts) planned rows into reused memory when nothing else is asked
// of it. No queue, no lease, no Python; the loader's speed is stated as a share of this one.
//
//   batch b:  slot b % 4    | field 0: thread 0 | thread 1 | ... | field 1: thread 0 | thread 1 | ...
//
// Each thread owns a fixed part of every field of every batch, and threads do not wait for each other between
// batches: since no two of them write the same bytes, nothing needs to be ordered before the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/team.h"
#include "cast/cast.h"
#include "core/base/memory.h"

namespace memload::bench {

// One field of the plan. Whoever makes it keeps the rows mapped for the Ceiling's life.
//
//   stored row   | ...... | run 0 | ... | run 1 | ... | run 2 | ...    as the lines of an image that is cropped
//                 rows[i] ^         ^ the stride after it
struct CeilingField {
  std::vector<const std::byte*> rows;  // where the first byte of each planned row lies, in the plan's order
  std::size_t row_bytes = 0;           // of a row that are read
  std::optional<CastRule> cast;        // none: the bytes are copied
  std::size_t run_bytes = 0;           // of a run, of which a row is a whole number; 0: the row is one run
  std::size_t run_stride = 0;          // bytes from one run to the next
};

struct CeilingRun {
  TeamTime time;
  std::size_t batches = 0;
  std::size_t rows = 0;
  std::size_t bytes_out = 0;
};

class Ceiling {
 public:
  // The plan's rows are taken in whole batches of batch_rows; a remainder is left out. Throws std::invalid_argument
  // for a plan without a whole batch, fields of different length, no thread, or a cast that nobody implements.
  Ceiling(std::vector<CeilingField> fields, std::size_t batch_rows, std::size_t threads, Isa isa);

  // Gathers that many batches, from the plan's start and over again. One caller at a time. Throws std::runtime_error
  // if a mapped file was cut short.
  CeilingRun run(std::size_t batches, Store store);

  // Gathers the plan's first batch into memory that nobody has touched yet: what any loader's first batch costs.
  CeilingRun run_fresh(Store store);

  [[nodiscard]] std::size_t batches_in_plan() const noexcept { return batches_in_plan_; }
  [[nodiscard]] std::size_t batch_bytes() const noexcept { return batch_bytes_; }

  // What batch `batch` of the last run wrote for one field; overwritten four batches later.
  [[nodiscard]] std::span<const std::byte> written(std::size_t batch, std::size_t field) const;

 private:
  struct Lane {
    std::span<const std::byte* const> rows;
    std::size_t units = 0;     // elements in a row, or bytes where they are copied
    std::size_t run = 0;       // units in a run
    std::size_t stride = 0;    // bytes from one run to the next
    std::size_t ahead = 0;     // runs from the one that is read to the one that is asked for; 0: none is
    std::size_t in_size = 1;   // bytes of a unit as it is read
    std::size_t out_size = 1;  // bytes of a unit as it is written
    std::size_t offset = 0;    // of the field in a slot
    CastFn move[2] = {};       // indexed by Store
  };

  CeilingRun gather(std::span<std::byte* const> slots, std::size_t batches, Store store) const;
  void gather_share(std::span<std::byte* const> slots, std::size_t thread, std::size_t batches, Store store) const;

  std::vector<CeilingField> fields_;
  std::vector<Lane> lanes_;
  std::size_t batch_rows_;
  std::size_t threads_;
  std::size_t batches_in_plan_ = 0;
  std::size_t batch_bytes_ = 0;
  std::vector<HugeMemory> memory_;
  std::vector<std::byte*> slots_;
};

struct CopyRun {
  TeamTime time;
  std::size_t bytes = 0;  // copied: read once, written once
};

// The machine's plain memcpy rate: each thread copies its own part of nbytes between huge-page buffers, over and over
// for about `seconds`.
CopyRun copy_rate(std::size_t nbytes, std::size_t threads, double seconds);

}  // namespace memload::bench
