// Reused memory for what Python writes itself.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/fork.h"
#include "core/base/memory.h"
#include "core/slots/slot_pool.h"
#include "python/convert.h"
#include "python/dlpack.h"
#include "python/register.h"

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
py::object withheld(std::size_t nbytes) {
  SlotPool::Lease lease;
  {
    const WithoutGil released;
    const std::shared_ptr<HugeMemory> memory = withheld_memory(nbytes);
    lease = {memory, memory->data()};
  }
  return to_capsule(lease, lease.get(), {1, 8, 1}, {static_cast<std::int64_t>(nbytes)});
}

}  // namespace

void register_slots(py::module_& m) {
  py::class_<Slots>(m, "Slots", "Memory that tensors lease, and that is used again when the last of them is gone.")
      .def(py::init<std::size_t>(), py::arg("count"),
           "At most so many are kept; those beyond are freed when their tensors are gone.")
      .def("take", &Slots::take, py::arg("nbytes"), "A DLPack capsule of so many bytes, uninitialised.");
  m.def("withheld", &withheld, py::arg("nbytes"),
        "A DLPack capsule of so many bytes, zeros on huge pages, which processes that are forked do not have.");
}

}  // namespace memload::python
