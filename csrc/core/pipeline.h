// The way of the data: planned rows -> gather by the workers -> slots -> batches in order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/gather.h"
#include "core/plan_queue.h"
#include "core/slot_pool.h"
#include "core/transfer.h"

namespace memload {

class Pass;

struct PipelineOptions {
  std::size_t batch_rows = 1;  // rows of a full batch
  std::size_t slot_rows = 1;   // rows that a slot is made for: those of the largest batch, as far as it is known
  bool drop_last = false;
  int depth = 2;    // batches gathered ahead of the one that is handed out
  int threads = 1;  // that may gather for this pipeline at once
  Isa isa = Isa::scalar;
  bool read_blocks = false;  // cold rows are read with the 2 MB around them: for passes that need most of a file anyway
  bool direct = false;  // cold rows above Gather::kLargeRow are read past the page cache, where the file system can
  std::optional<Store> store;  // unset: streaming if the ring is larger than 1.5 last level caches
  MemorySource slots = huge_memory;
  std::optional<Route> route;  // to a device; unset: batches are handed out in their slots
  bool lent = false;           // there are no slots: each batch is gathered into memory that land() gives
};

// A finished batch. Its bytes stay as they are for as long as any copy of the lease lives.
struct Batch {
  SlotPool::Lease slot;  // null where the batch is in memory that land() gave
  std::size_t rows = 0;
  std::size_t kept_begin = 0;   // where the second part of the slot begins, with a route
  std::vector<Output> outputs;  // of the fields in their order; their offsets are those in the slot
};

// unplanned: the plan is not finished and holds no further batch. unlanded: a batch has begun for which land() is to be
// called first.
enum class Step : std::uint8_t { batch, end, waiting, unplanned, unlanded };

// What land() is to give for a batch: with a route, for the two parts of the slot; else for the batch.
struct MemoryNeed {
  std::size_t first = 0;
  std::size_t second = 0;
};

struct PipelineStats {
  std::uint64_t batches = 0;         // handed out
  std::uint64_t rows = 0;            // handed out
  std::uint64_t bytes_in = 0;        // read from the columns for them
  std::uint64_t bytes_out = 0;       // written for them
  double gather_seconds = 0;         // thread-seconds spent copying, casting and decoding
  double decode_seconds = 0;         // those of them that decoding took
  double consumer_wait_seconds = 0;  // the consumer inside next()
  double ring_full_seconds = 0;      // the plan had more, but every slot was filled or lent
  std::uint64_t fresh_batches = 0;   // served from memory of their own, since every slot was lent
  std::uint64_t helped_pieces = 0;   // gathered by the waiting consumer itself
  std::uint64_t major_faults = 0;    // reads that went to the disk while gathering
  std::uint64_t advised_rows = 0;    // asked for ahead
  std::uint64_t direct_bytes = 0;    // read past the page cache
  std::uint64_t cached_bytes = 0;    // copied out of the caches of the hybrid tier
  std::uint64_t copied_bytes = 0;    // to a device, of batches that were handed out
  std::uint64_t copies = 0;          // in which they were copied
  double copy_wait_seconds = 0;      // the consumer, for a slot that was still being copied
  bool streaming = false;            // whether stores pass by the cache
};

// One pass over a plan. extend/push/finish/next/ready/need/land/close are for one consumer thread at a time; leases may
// end anywhere. In a forked child every call but the destructor throws ForkedError.
class Pipeline {
 public:
  // Far beyond what one piece takes on any disk that works.
  static constexpr std::chrono::milliseconds kLongestClose{2000};

  // Takes the slots over from `reuse` if given, which must have been closed with keep_slots; those of a ring of another
  // depth are given back.
  Pipeline(const std::vector<FieldSpec>& fields, const PipelineOptions& options, Pipeline* reuse = nullptr);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Rows that follow those planned before; batches of batch_rows are cut from their stream.
  void extend(Rows rows);
  // Rows that are one batch by themselves. Do not mix with extend().
  void push(Rows rows);
  // The plan is complete: what is left of the stream becomes the last batch, unless drop_last.
  void finish();

  // The next batch in order. Waits up to `patience`; `waiting` if it was not ready by then. With `help` it gathers
  // meanwhile, unless reads go to a disk; without, it is never held up by a read.
  // Throws the first error of the batch: ReadError, or
  // std::out_of_range for a row that is not there; what follows is then the end.
  Step next(Batch& batch, std::chrono::milliseconds patience, bool help = true);
  // Whether next() would give a batch, or its error, at once.
  bool ready();

  // With a route, or lent: what the first batch needs that has begun and not landed; unset: none does.
  std::optional<MemoryNeed> need();
  // Memory for that batch, which `owner` keeps alive until the batch is handed out or the pipeline is closed. With a
  // route it is the device's, `owner` is not needed, and it is written to in the order of the route's stream of copies.
  // Errors of the device are the batch's.
  void land(const Landing& memory, std::shared_ptr<void> owner = nullptr);

  // Stops, waits for pieces that are being gathered, and gives memory and threads back, unless keep_slots saves them
  // for another pass. Batches that are lent stay valid. May be called twice. Returns false if a piece has not ended
  // within `patience`; then nothing was given back yet, and the next call is this one again, or forsake().
  bool close(bool keep_slots = false, std::chrono::milliseconds patience = kLongestClose);
  // Closes without waiting any longer for reads that do not answer: their threads are left behind, and what these hold.
  // The destructor, too, does so after kLongestClose.
  void forsake(bool keep_slots = false);

  // How many arrays a field puts into a batch.
  [[nodiscard]] std::size_t outputs(std::size_t field) const;
  [[nodiscard]] PipelineStats stats() const;
  // What the ring takes: slots x the mapped size of a batch of slot_rows.
  [[nodiscard]] static std::size_t ring_bytes(const Gather& gather, std::size_t slot_rows, int depth);
  // What so many threads, and a consumer that helps them, take to decode in; 0 for no threads.
  [[nodiscard]] static std::size_t workspace_bytes(const Gather& gather, int threads);

 private:
  [[nodiscard]] Pass& here() const;  // throws ForkedError in a child

  std::shared_ptr<Pass> pass_;
};

}  // namespace memload
