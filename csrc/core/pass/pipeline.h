// The public interface of a pass: planned rows -> gather by the workers -> slots -> batches in order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/gather/gather.h"
#include "core/pass/async_copy.h"
#include "core/pass/plan_queue.h"
#include "core/slots/slot_pool.h"
#include "core/slots/spare_memory.h"

namespace memload {

class Pass;

// Memory of the device for the batches of a route: so many buffers of so many bytes, one after the other, each at least
// as large as a slot. It belongs to the route's stream of copies, and has to outlive the pipeline and its copies.
struct DeviceBuffers {
  std::byte* memory = nullptr;
  std::size_t count = 1;
  std::size_t bytes = 0;
};

struct PipelineOptions {
  std::size_t batch_rows = 1;  // rows of a full batch
  std::size_t slot_rows = 1;   // rows for which a slot is made: those of the largest batch, as far as it is known
  bool drop_last = false;
  int depth = 2;          // batches gathered ahead of the one that is handed out
  int threads = 1;        // that may gather for this pipeline at once
  std::vector<int> cpus;  // near the slots; threads stay there if each has one of these CPUs. Empty: they stay nowhere
  Isa isa = Isa::scalar;
  bool read_blocks = false;  // cold rows are read with the 2 MB around them: for passes that need most of a file anyway
  bool direct = false;  // cold rows above Gather::kLargeRow are read past the page cache, where the file system can
  std::size_t tile_bytes = 0;        // of decoded tiles, kept for further batches of the pass
  std::shared_ptr<TileCache> tiles;  // of another pipeline, in which this one keeps them too; null: its own
  std::optional<Store> store;        // unset: store_choice.h
  MemorySource slots = huge_memory;
  std::weak_ptr<Spares> spares;  // if any: what the pass decodes in comes from there, and its threads stay there
  std::optional<Route> route;    // to a device; unset: batches are handed out in their slots
  std::optional<DeviceBuffers> buffers;  // where a route leads; unset: set_destination() says so for each batch
  bool borrowed = false;  // there are no slots: batches are gathered into memory that set_destination() gives
};

// A finished batch. Its bytes stay as they are for as long as any copy of the lease lives.
struct Batch {
  SlotPool::Lease slot;                   // null where set_destination() gave the memory
  std::vector<std::int64_t> row_numbers;  // of its rows, as they were planned
  std::size_t kept_begin = 0;             // where the second part of the slot begins, with a route
  std::byte* passing = nullptr;           // with a route: where the first part is on the device
  std::vector<Output> outputs;            // of the fields in their order; their offsets are those in the slot
};

// unplanned: the plan is not finished and holds no further batch. needs_destination: a batch has begun for which
// set_destination() has to be called first.
enum class Step : std::uint8_t { batch, end, waiting, unplanned, needs_destination };

// Bytes of a destination: with a route, of the two parts of the slot; else of the batch.
struct DestinationSize {
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
  double ring_full_seconds = 0;      // the plan had more, but every slot was filled or leased
  std::uint64_t fresh_batches = 0;   // handed out in memory of their own, since every slot was leased
  std::uint64_t stolen_pieces = 0;   // that the waiting consumer took from the threads and gathered itself
  std::uint64_t major_faults = 0;    // reads that went to the disk while gathering
  std::uint64_t disk_bytes = 0;      // read from the disk, also ahead and past the page cache
  double disk_seconds = 0;           // thread-seconds of gather_seconds in pieces for which the disk was read
  std::uint64_t advised_rows = 0;    // asked for ahead
  std::uint64_t direct_bytes = 0;    // read past the page cache
  std::uint64_t cached_bytes = 0;    // copied out of the caches of the hybrid tier
  std::uint64_t decoded_tiles = 0;   // chunks that were decompressed
  std::uint64_t reused_bytes = 0;    // stored bytes of chunks that were kept decoded, counted in bytes_in and not read
  std::uint64_t copied_bytes = 0;    // to a device, of batches that were handed out
  std::uint64_t copies = 0;          // in which they were copied
  double copy_wait_seconds = 0;      // the consumer, for a slot that was still being copied
  bool streaming = false;            // whether stores pass by the cache
};

// One pass over a plan. One consumer thread at a time calls its methods; leases may end on any thread. In a forked
// child every call but the destructor throws ForkedError.
class Pipeline {
 public:
  // Far beyond what one piece takes on any disk that works.
  static constexpr std::chrono::milliseconds kLongestClose{2000};

  // Takes the slots over from `reuse`, if given, which must have been closed with keep_slots. Slots of a ring of
  // another depth are given back.
  Pipeline(const std::vector<FieldSpec>& fields, const PipelineOptions& options, Pipeline* reuse = nullptr);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Number of rows of the data set.
  [[nodiscard]] std::int64_t rows() const;
  // The key from which, with each row, all that is random follows; 0 unless it is set before the first rows.
  void begin(std::uint64_t key);
  // Rows that follow those planned before; batches of batch_rows are cut from their stream.
  void extend(Rows rows);
  // Rows that are one batch by themselves. Do not mix with extend().
  void push(Rows rows);
  // The plan is complete: what is left of the stream becomes the last batch, unless drop_last.
  void finish();

  // Gives the next batch in order. Waits up to `patience`, and returns `waiting` if the batch was not ready by then.
  // With `steal` the caller gathers queued pieces meanwhile, unless reads go to a disk; without, no read holds it up.
  // Throws the first error of the batch: ReadError, or std::out_of_range for a row that does not exist. The end follows
  // an error.
  Step next(Batch& batch, std::chrono::milliseconds patience, bool steal = true);
  // As next(), but it neither waits nor gathers: `waiting` if the batch is not there yet.
  Step next_if_ready(Batch& batch);
  // Throws ReadError if a file that the pass reads was cut since it was opened: batches may have had zeros of its last
  // page, of which the kernel says nothing. Whoever hands out batches asks once the last one was handed out.
  void check_files() const;
  // Whether next() would give a batch, or its error, at once.
  bool ready();

  // The destination that the first batch needs which has begun and has none: with a route, or with borrowed memory.
  // Unset: no batch needs one.
  std::optional<DestinationSize> needed_destination();
  // Gives memory to that batch. `owner` keeps it alive until the batch is handed out or the pipeline is closed. With a
  // route it is memory of the device, which needs no owner and is written in the order of the route's stream of copies;
  // errors of the device become errors of the batch.
  void set_destination(const DestinationBuffer& memory, std::shared_ptr<void> owner = nullptr);

  // With `buffers`: says that all that reads the batch which was handed out first, of those that were not released yet,
  // is in the route's stream of work. Its buffer is used again after that. Throws DeviceError.
  void release();

  // Stops gathering, and returns the plan of what was not handed out. next() has nothing more; close() has to follow.
  [[nodiscard]] PlanQueue cancel();
  // Stops, waits for pieces that are being gathered, and gives memory and threads back, unless keep_slots saves them
  // for another pass. Batches that were handed out stay valid. A second call does nothing. Returns false if a piece has
  // not ended within `patience`: nothing was given back then, and close() or abandon() has to follow.
  bool close(bool keep_slots = false, std::chrono::milliseconds patience = kLongestClose);
  // Closes without waiting any longer for reads that do not answer. Their threads are left behind, with what they hold.
  // The destructor does the same after kLongestClose.
  void abandon(bool keep_slots = false);

  // What it keeps of decoded tiles; null: nothing.
  [[nodiscard]] std::shared_ptr<TileCache> tiles() const;
  // How many arrays a field puts into a batch.
  [[nodiscard]] std::size_t outputs(std::size_t field) const;
  [[nodiscard]] PipelineStats stats() const;
  // Bytes of the ring: slots x the mapped size of a batch of slot_rows.
  [[nodiscard]] static std::size_t ring_bytes(const Gather& gather, std::size_t slot_rows, int depth);
  // Bytes that so many threads, and a consumer that steals work from them, decode in; 0 for no threads.
  [[nodiscard]] static std::size_t workspace_bytes(const Gather& gather, int threads);

 private:
  [[nodiscard]] Pass& here() const;  // throws ForkedError in a child

  std::shared_ptr<Pass> pass_;
};

}  // namespace memload
