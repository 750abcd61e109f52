// Reused memory for what Python writes itself.
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/fork.h"
#include "core/base/memory.h"
#include "core/base/numa.h"
#include "core/slots/slot_pool.h"
#include "python/convert.h"
#include "python/dlpack.h"
#include "python/register.h"
#include "python/spares.h"

namespace memload::python {
namespace {

namespace py = pybind11;

// Leases slots. Leases outlive it; what it keeps is freed when it ends.
class Slots {
 public:
  explicit Slots(std::size_t count) : pool_(SlotPool::create(count)) {}
  ~Slots() {
    if (born_ == fork_generation()) pool_->close();
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // At least one byte is mapped, so that a tensor without elements has an address too.
  [[nodiscard]] py::object take(std::size_t nbytes) const {
    SlotPool::Lease slot;
    {
      const WithoutGil released;
      const std::size_t mapped = std::max<std::size_t>(1, nbytes);
      slot = pool_->try_acquire(mapped);
      if (!slot) slot = pool_->fresh(mapped);
    }
    const DlDataType bytes{1, 8, 1};
    return to_capsule(slot, slot.get(), bytes, {static_cast<std::int64_t>(nbytes)});
  }

 private:
  std::shared_ptr<SlotPool> pool_;
  std::uint64_t born_ = fork_generation();
};

// Memory by itself, as a slot.
py::object withheld(std::size_t nbytes, std::optional<int> node) {
  SlotPool::Lease lease;
  {
    const WithoutGil released;
    const std::shared_ptr<HugeMemory> memory = withheld_memory(nbytes);
    if (node) prefer_node(memory->data(), memory->size(), *node);
    lease = {memory, memory->data()};
  }
  return to_capsule(lease, lease.get(), {1, 8, 1}, {static_cast<std::int64_t>(nbytes)});
}

// Memory that the caller keeps, and kernels of a GPU read.
py::object gpu_view(std::uintptr_t address, std::size_t nbytes, int device) {
  auto* const memory = reinterpret_cast<std::byte*>(address);
  const SlotPool::Lease borrowed(memory, [](std::byte*) {});
  return to_capsule(borrowed, memory, {1, 8, 1}, {static_cast<std::int64_t>(nbytes)}, {2, device});
}

}  // namespace

void register_slots(py::module_& m) {
  py::class_<PySpares>(m, "Spares",
                       "Memory and threads of a loader's passes that have ended, kept for passes that begin soon.")
      .def(py::init([](double seconds) {
             const auto time = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
             return std::make_unique<PySpares>(Spares::create(time));
           }),
           py::arg("seconds") = std::chrono::duration<double>(kSpareTime).count(),
           "They stay for so many seconds without use.")
      .def(
          "release", [](const PySpares& spares) { spares->release(); }, py::call_guard<WithoutGil>(),
          "Free what is kept here now.");
  m.def("spare_bytes", &spare_bytes, "Bytes of the memory that is kept of all loaders of this process.");
  m.def("free_spares", &free_spares, py::call_guard<WithoutGil>(), "Free what is kept of all loaders of this process.");
  m.def("free_spares_below", &free_spares_below, py::arg("available"),
        "Free it as soon as the machine has fewer bytes available; a thread looks while something is kept.");
  py::class_<Slots>(m, "Slots", "Memory that tensors lease, and that is used again when the last of them is gone.")
      .def(py::init<std::size_t>(), py::arg("count"),
           "At most so many are kept; those beyond are freed when their tensors are gone.")
      .def("take", &Slots::take, py::arg("nbytes"), "A DLPack capsule of so many bytes, uninitialised.");
  m.def("gpu_view", &gpu_view, py::arg("address"), py::arg("nbytes"), py::arg("device"),
        "A DLPack capsule of memory that kernels of a GPU read at this address; the caller keeps it.");
  m.def(
      "withheld", &withheld, py::arg("nbytes"), py::arg("node") = py::none(),
      "A DLPack capsule of so many bytes, zeros on huge pages, which processes that are forked do not have; on a NUMA "
      "node if one is named.");
}

}  // namespace memload::python
