#include "tests/simulated/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace memload {
namespace {

std::uint64_t sum_of(const std::byte* data, std::size_t bytes) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < bytes; ++i) sum = (sum ^ static_cast<std::uint64_t>(data[i])) * 0x100000001b3u;
  return sum;
}

}  // namespace

struct SimulatedDevice::Mark {
  std::mutex mutex;
  std::condition_variable_any came;
  bool done = false;                           // guarded by mutex, as the next
  std::chrono::steady_clock::time_point when;  // it was done

  void set() {
    const std::lock_guard lock(mutex);
    done = true;
    when = std::chrono::steady_clock::now();
    came.notify_all();
  }

  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> time() {
    const std::lock_guard lock(mutex);
    return done ? std::optional(when) : std::nullopt;
  }
};

// A stream: what is put into it is done in order, each a while after the one before.
class SimulatedDevice::Worker {
 public:
  Worker(Lateness lateness, unsigned seed)
      : lateness_(lateness), random_(seed), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void put(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    queued_.notify_one();
  }

  [[nodiscard]] std::stop_token stopping() const { return thread_.get_stop_token(); }
  [[nodiscard]] bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }
  void stop() { thread_.request_stop(); }
  void join() { thread_.join(); }
  void leave() { thread_.detach(); }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (queued_.wait(lock, stop, [this] { return !queue_.empty(); })) {
      const std::chrono::microseconds late(std::uniform_int_distribution<std::int64_t>(
          lateness_.least.count(), std::max(lateness_.least, lateness_.most).count())(random_));
      if (late.count() != 0) queued_.wait_for(lock, stop, late, [] { return false; });
      if (stop.stop_requested()) return;  // what is queued dies with the worker
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;  // what it kept may end only here, and put something into this stream
      lock.lock();
    }
  }

  const Lateness lateness_;
  std::mutex mutex_;
  std::condition_variable_any queued_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  std::mt19937 random_;                      // the thread's own
  std::jthread thread_;                      // last: it ends before what it uses
};

std::shared_ptr<SimulatedDevice> SimulatedDevice::create(std::size_t pinnable, bool at_once) {
  std::shared_ptr<SimulatedDevice> device(new SimulatedDevice(pinnable, at_once));
  const auto released = [weak = std::weak_ptr(device)](SimulatedMemory::Block block) {
    if (const auto alive = weak.lock()) alive->release(std::move(block));
  };
  device->memory_ = std::make_shared<SimulatedMemory>(released);
  device->pinned_pool_ = std::make_shared<SimulatedMemory>(released);
  return device;
}

// The first stream, number 0, is punctual: blocks whose leases have ended wait in it until they are used no more.
SimulatedDevice::SimulatedDevice(std::size_t pinnable, bool at_once) : pinnable_(pinnable), at_once_(at_once) {
  workers_.push_back(std::make_unique<Worker>(Lateness{{}, {}}, 0));
}

// What is queued in one stream may own memory that another is amid: no worker dies before all have ended.
SimulatedDevice::~SimulatedDevice() {
  if (born_ != fork_generation()) {
    for (auto& worker : workers_) static_cast<void>(worker.release());  // there is no thread to join
    return;
  }
  for (const auto& worker : workers_) worker->stop();
  for (auto& worker : workers_) {
    if (!worker->is_this_thread()) {
      worker->join();
      continue;
    }
    worker->leave();
    static_cast<void>(worker.release());  // it lives as long as its thread, which is here
  }
}

Device::Stream SimulatedDevice::add_stream(Lateness lateness, unsigned seed) {
  const std::lock_guard lock(mutex_);
  workers_.push_back(std::make_unique<Worker>(lateness, seed));
  return workers_.size() - 1;
}

void SimulatedDevice::put(Stream stream, std::function<void()> work) {
  if (at_once_) return work();
  if (born_ != fork_generation()) throw DeviceError("the streams of this device stayed with the process that forked");
  const std::lock_guard lock(mutex_);
  if (stream >= workers_.size()) throw DeviceError("there is no stream " + std::to_string(stream));
  workers_[stream]->put(std::move(work));
}

Device::Stream SimulatedDevice::create_stream(Urgency) { return add_stream({{}, {}}); }

void SimulatedDevice::register_host(std::byte* memory, std::size_t bytes) {
  counted("register");
  pin(memory, bytes);
}
void SimulatedDevice::unregister_host(std::byte* memory) noexcept { unpin(memory); }

void SimulatedDevice::pin(const std::byte* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > pinnable_ - pinned_bytes_) {
    throw DeviceError("pinning " + std::to_string(bytes) + " bytes failed: " + std::to_string(pinnable_) +
                      " can be pinned, and " + std::to_string(pinned_bytes_) + " are");
  }
  pinned_.emplace(memory, bytes);
  pinned_bytes_ += bytes;
}

void SimulatedDevice::unpin(const std::byte* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(memory);
  if (found == pinned_.end()) return;
  pinned_bytes_ -= found->second;
  pinned_.erase(found);
}

bool SimulatedDevice::is_readable(const std::byte* memory) const {
  if (pinned_pool_->maps(memory)) return true;
  const auto after = pinned_.upper_bound(memory);
  if (after == pinned_.begin()) return false;
  const auto& [base, bytes] = *std::prev(after);
  return memory < base + bytes;
}

void SimulatedDevice::copy_async(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) {
  counted("copy");
  bool pinned = false;
  {
    const std::lock_guard lock(mutex_);
    counts_["copied_bytes"] += bytes;
    pinned = is_readable(from);
  }
  if (!pinned) {
    await(mark(stream));
    const auto aside = std::make_shared<std::vector<std::byte>>(from, from + bytes);
    copy_keeping(to, aside->data(), bytes, stream, aside);
    return;
  }
  if (at_once_) {
    std::memcpy(to, from, bytes);
    return;
  }
  put(stream, [this, to, from, bytes, sum = sum_of(from, bytes)] { copy_late(to, from, bytes, sum); });
}

// With the mutex, so that nobody unmaps the source meanwhile.
void SimulatedDevice::copy_late(std::byte* to, const std::byte* from, std::size_t bytes, std::uint64_t sum) {
  const std::lock_guard lock(mutex_);
  if (!is_readable(from)) {
    violations_.emplace_back("the source of a copy was given up before the copy was done");
    return;
  }
  if (sum_of(from, bytes) != sum) violations_.emplace_back("the source of a copy changed before the copy was done");
  if (!memory_->writable(to, bytes)) violations_.emplace_back("a copy went to memory that was given up");
  std::memcpy(to, from, bytes);
}

void SimulatedDevice::copy_keeping(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream,
                                   std::shared_ptr<void> keeps) {
  put(stream, [to, from, bytes, keeps = std::move(keeps)] { std::memcpy(to, from, bytes); });
}

std::shared_ptr<std::vector<std::byte>> SimulatedDevice::read(const std::byte* from, std::size_t bytes, Stream stream) {
  auto found = std::make_shared<std::vector<std::byte>>(bytes);
  put(stream, [found, from, bytes] { std::memcpy(found->data(), from, bytes); });
  return found;
}

void SimulatedDevice::watch(const std::byte* from, std::size_t bytes, Stream stream) {
  put(stream, [this, from, bytes, sum = sum_of(from, bytes)] {
    if (sum_of(from, bytes) == sum) return;
    const std::lock_guard lock(mutex_);
    violations_.emplace_back("memory was used again before a kernel had read it");
  });
}

Device::Event SimulatedDevice::record(Stream stream) {
  if (counted("record")) return mark(stream);
  auto come = std::make_shared<Mark>();
  come->set();
  return come;
}

void SimulatedDevice::wait(Stream stream, const Event& event) {
  if (counted("wait")) follow(stream, event);
}

bool SimulatedDevice::done(const Event& event) { return !counted("done") || has_come(event); }

void SimulatedDevice::synchronise(const Event& event) {
  if (counted("synchronise")) await(event);
}

Device::Event SimulatedDevice::mark(Stream stream) {
  auto mark = std::make_shared<Mark>();
  put(stream, [mark] { mark->set(); });
  return mark;
}

void SimulatedDevice::follow(Stream stream, const Event& event) {
  put(stream, [mark = std::static_pointer_cast<Mark>(event), stop = stopping()] {
    std::unique_lock lock(mark->mutex);
    mark->came.wait(lock, stop, [&] { return mark->done; });
  });
}

bool SimulatedDevice::has_come(const Event& event) {
  const auto mark = std::static_pointer_cast<Mark>(event);
  const std::lock_guard lock(mark->mutex);
  return mark->done;
}

void SimulatedDevice::await(const Event& event) {
  const auto mark = std::static_pointer_cast<Mark>(event);
  std::unique_lock lock(mark->mutex);
  mark->came.wait(lock, [&] { return mark->done; });
}

std::optional<double> SimulatedDevice::seconds_between(const Event& first, const Event& second) {
  const auto begun = std::static_pointer_cast<Mark>(first)->time();
  const auto ended = std::static_pointer_cast<Mark>(second)->time();
  if (!begun || !ended) return std::nullopt;
  return std::chrono::duration<double>(*ended - *begun).count();
}

Device::Event SimulatedDevice::gate() { return std::make_shared<Mark>(); }
void SimulatedDevice::open(const Event& gate) { std::static_pointer_cast<Mark>(gate)->set(); }

SimulatedMemory::Lease SimulatedDevice::empty(std::size_t bytes, Stream stream) {
  return memory_->take(std::max<std::size_t>(1, bytes), stream);
}

SimulatedMemory::Lease SimulatedDevice::pinned(std::size_t bytes) {
  return pinned_pool_->take(std::max<std::size_t>(1, bytes), 0);
}

bool SimulatedDevice::hold(const std::byte* base, Stream stream) { return memory_->use(base, stream); }
bool SimulatedDevice::note_copy(const std::byte* base, Stream stream) { return pinned_pool_->use(base, stream); }
bool SimulatedDevice::is_pinned(const std::byte* base) const { return pinned_pool_->leased(base); }
bool SimulatedDevice::is_there(const std::byte* base) const { return memory_->leased(base); }

// The block is used again when each stream has come to where it is now. Of the pinned ones nobody owns any.
void SimulatedDevice::release(SimulatedMemory::Block block) {
  std::vector<std::shared_ptr<Mark>> marks;
  const auto mark = [&](Stream stream) {
    marks.push_back(std::make_shared<Mark>());
    put(stream, [one = marks.back()] { one->set(); });
  };
  for (const Stream stream : block.users) mark(stream);
  const bool pinned = block.owner == 0;
  if (!pinned) mark(block.owner);
  const std::shared_ptr<SimulatedMemory> pool = pinned ? pinned_pool_ : memory_;
  if (marks.empty()) {
    pool->give_back(std::move(block));
    return;
  }
  const auto kept = std::make_shared<SimulatedMemory::Block>(std::move(block));
  for (const auto& one : marks) follow(0, one);
  put(0, [pool, kept] { pool->give_back(std::move(*kept)); });
}

std::stop_token SimulatedDevice::stopping() const {
  const std::lock_guard lock(mutex_);
  return workers_.front()->stopping();
}

void SimulatedDevice::leave_out(const std::string& call) {
  const std::lock_guard lock(mutex_);
  left_out_.insert(call);
}

bool SimulatedDevice::counted(const std::string& call) {
  const std::lock_guard lock(mutex_);
  ++counts_[call];
  return !left_out_.contains(call);
}

std::vector<std::string> SimulatedDevice::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

std::size_t SimulatedDevice::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

std::map<std::string, std::uint64_t> SimulatedDevice::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace memload
