// A device for tests: its memory is plain RAM, and each of its streams is a thread that does everything late.
//
// What would be a rare, silent fault on a GPU shows here: memory is poisoned before anything is written to it and as
// soon as it may be used again, and a copy whose source changed between its issue and its execution is a violation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fork.h"
#include "core/slots/device.h"
#include "tests/simulated/memory.h"

namespace memload {

// How late a stream is: for each thing that it does, a time between these two.
struct Lateness {
  std::chrono::microseconds least{0};
  std::chrono::microseconds most{500};
};

// Made by create(). Ends its threads when it dies, without waiting for what is still queued. In a forked child, which
// does not have the threads, whatever goes into a stream throws, and the end of the device or of its memory does
// nothing.
class SimulatedDevice final : public Device, public std::enable_shared_from_this<SimulatedDevice> {
 public:
  // pinnable: the most bytes that can be pinned at once. at_once: nothing is late; each thing is done by the thread
  // that puts it into a stream, so that a call costs its caller the same each time. For measurements, not for tests of
  // order.
  static std::shared_ptr<SimulatedDevice> create(std::size_t pinnable = std::numeric_limits<std::size_t>::max(),
                                                 bool at_once = false);
  ~SimulatedDevice() override;

  [[nodiscard]] Stream add_stream(Lateness lateness, unsigned seed = 0);

  void register_host(std::byte* memory, std::size_t bytes) override;
  void unregister_host(std::byte* memory) noexcept override;
  // A punctual stream.
  [[nodiscard]] Stream create_stream(Urgency urgency) override;
  // As CUDA does it: what is not pinned is copied aside before this returns, when the stream has come to it.
  void copy_async(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) override;
  [[nodiscard]] Event record(Stream stream) override;
  void wait(Stream stream, const Event& event) override;
  [[nodiscard]] bool done(const Event& event) override;
  void synchronise(const Event& event) override;

  // What record(), wait(), done() and synchronise() do, whatever is left out and without being counted.
  [[nodiscard]] Event mark(Stream stream);
  void follow(Stream stream, const Event& event);
  [[nodiscard]] static bool has_come(const Event& event);
  static void await(const Event& event);
  // The seconds between the times at which two such events came; unset if one of them has not come.
  [[nodiscard]] static std::optional<double> seconds_between(const Event& first, const Event& second);
  // An event that comes when open() is called with it.
  [[nodiscard]] static Event gate();
  static void open(const Event& gate);

  // Memory of the device, poisoned, which belongs to a stream. It is leased until the lease ends, and poisoned again
  // once that stream and all that hold it are done with what is in them by then.
  [[nodiscard]] SimulatedMemory::Lease empty(std::size_t bytes, Stream stream);
  // Pinned memory as torch's allocator gives it: used again once the copies are done that note_copy() was told of.
  [[nodiscard]] SimulatedMemory::Lease pinned(std::size_t bytes);
  // Another stream uses the block at this address, or it is read by a copy in that stream; false if there is none.
  bool hold(const std::byte* base, Stream stream);
  bool note_copy(const std::byte* base, Stream stream);
  [[nodiscard]] bool is_pinned(const std::byte* base) const;
  [[nodiscard]] bool is_there(const std::byte* base) const;

  // `keeps` lives until the copy is done. From any memory, without a look at whether it changes.
  void copy_keeping(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream,
                    std::shared_ptr<void> keeps);
  // Reads memory of the device in the stream's order: the bytes are there once an event has come that was recorded in
  // it afterwards.
  [[nodiscard]] std::shared_ptr<std::vector<std::byte>> read(const std::byte* from, std::size_t bytes, Stream stream);

  // A kernel in the stream reads this memory late: a violation if it is not what it is now.
  void watch(const std::byte* from, std::size_t bytes, Stream stream);

  // From now on this call of native code does nothing: "record" gives events that have come, "wait" and "synchronise"
  // do not wait, "done" says yes.
  void leave_out(const std::string& call);

  [[nodiscard]] std::vector<std::string> violations() const;
  [[nodiscard]] std::size_t pinned_bytes() const;
  [[nodiscard]] std::map<std::string, std::uint64_t> counts() const;  // native calls by name, and "copied_bytes"

 private:
  class Worker;
  struct Mark;

  SimulatedDevice(std::size_t pinnable, bool at_once);
  void put(Stream stream, std::function<void()> work);
  void release(SimulatedMemory::Block block);
  void pin(const std::byte* memory, std::size_t bytes);
  void unpin(const std::byte* memory) noexcept;
  [[nodiscard]] bool is_readable(const std::byte* memory) const;  // with mutex_ held: whether it is pinned
  void copy_late(std::byte* to, const std::byte* from, std::size_t bytes, std::uint64_t sum);
  bool counted(const std::string& call);  // whether it is not left out
  [[nodiscard]] std::stop_token stopping() const;

  const std::size_t pinnable_;
  const bool at_once_;
  const std::uint64_t born_ = fork_generation();
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> pinned_;  // guarded by mutex_, as all below
  std::size_t pinned_bytes_ = 0;
  std::set<std::string> left_out_;
  std::map<std::string, std::uint64_t> counts_;
  std::vector<std::string> violations_;
  std::shared_ptr<SimulatedMemory> memory_;       // guards itself
  std::shared_ptr<SimulatedMemory> pinned_pool_;  // guards itself
  std::vector<std::unique_ptr<Worker>> workers_;  // last: they end before what they use
};

}  // namespace memload
