#include "core/slots/pinned.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/base/fork.h"
#include "core/base/numa.h"

namespace memload {
namespace {

constexpr int kTries = 4;  // the first one warms up

}  // namespace

SlotMemory pinned_memory(const std::shared_ptr<Device>& device, std::size_t bytes, std::optional<int> node) {
  const std::size_t size = mapped_bytes(bytes);
  const std::shared_ptr<HugeMemory> memory = withheld_memory(size);
  std::byte* const data = memory->data();
  if (node) prefer_node(data, size, *node);  // to pin a page is to touch it
  device->register_host(data, size);
  auto release = [device, memory, born = fork_generation()](void* p) {
    if (born == fork_generation()) device->unregister_host(static_cast<std::byte*>(p));
  };
  return {data, size, std::shared_ptr<void>(data, std::move(release))};
}

PinnedSource::PinnedSource(std::shared_ptr<Device> device, std::size_t limit, std::optional<int> node)
    : device_(std::move(device)), limit_(limit), node_(node), state_(std::make_shared<State>()) {}

SlotMemory PinnedSource::operator()(std::size_t bytes) {
  const std::size_t size = mapped_bytes(bytes);
  if (!refusal().empty()) return huge_memory(bytes);
  if (state_->bytes.fetch_add(size) + size > limit_) {
    state_->bytes -= size;
    refuse("a slot of " + std::to_string(size) + " bytes would pin more than the limit of " + std::to_string(limit_) +
           " bytes");
    return huge_memory(bytes);
  }
  try {
    SlotMemory memory = pinned_memory(device_, bytes, node_);
    std::byte* const data = memory.data;
    auto counted = [state = state_, size, owner = std::move(memory.owner)](void*) mutable {
      owner.reset();
      state->bytes -= size;
    };
    return {data, size, std::shared_ptr<void>(data, std::move(counted))};
  } catch (const std::runtime_error& error) {  // a DeviceError, perhaps of another module
    state_->bytes -= size;
    refuse("the driver refused to pin " + std::to_string(size) + " bytes beside " +
           std::to_string(state_->bytes.load()) + " that are pinned: " + error.what());
    return huge_memory(bytes);
  }
}

std::string PinnedSource::refusal() const {
  const std::lock_guard lock(state_->mutex);
  return state_->refusal;
}

void PinnedSource::refuse(std::string why) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->refusal.empty()) state_->refusal = std::move(why);
}

double copy_seconds(const std::shared_ptr<Device>& device, Device::Stream stream, std::byte* to, std::size_t bytes) {
  const SlotMemory memory = pinned_memory(device, bytes);
  std::memset(memory.data, 0, bytes);  // pages that nobody has touched are not there yet
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    device->copy_async(to, memory.data, bytes, stream);
    device->synchronise(device->record(stream));
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i > 0) fastest = std::min(fastest, spent.count());
  }
  return fastest;
}

}  // namespace memload
