#include "python/dlpack.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace memload::python {
namespace {

struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t ndim;
  DlDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DlManagedTensor {
  DlTensor tensor;
  void* manager_ctx;
  void (*deleter)(DlManagedTensor*);
};

constexpr const char* kFresh = "dltensor";  // the consumer renames the capsule once it has taken over

struct LeasedTensor {
  DlManagedTensor managed;
  SlotPool::Lease slot;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

void end_of_tensor(DlManagedTensor* managed) { delete static_cast<LeasedTensor*>(managed->manager_ctx); }

void end_of_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kFresh) == 0) return;
  auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule, kFresh));
  managed->deleter(managed);
}

}  // namespace

pybind11::object to_capsule(const SlotPool::Lease& slot, std::byte* data, DlDataType dtype,
                            std::vector<std::int64_t> shape, DlDevice device) {
  auto tensor = std::make_unique<LeasedTensor>();
  tensor->slot = slot;
  tensor->shape = std::move(shape);
  tensor->strides.resize(tensor->shape.size());
  std::int64_t step = 1;
  for (std::size_t i = tensor->shape.size(); i-- > 0;) {
    tensor->strides[i] = step;
    step *= std::max<std::int64_t>(1, tensor->shape[i]);  // as torch counts: an empty side takes one
  }
  // As in torch, tensors without elements have no address: torch.save takes equal addresses for one memory.
  const bool empty = std::ranges::find(tensor->shape, 0) != tensor->shape.end();
  tensor->managed = {{empty ? nullptr : data, device, static_cast<std::int32_t>(tensor->shape.size()), dtype,
                      tensor->shape.data(), tensor->strides.data(), 0},
                     tensor.get(),
                     &end_of_tensor};
  PyObject* capsule = PyCapsule_New(&tensor->managed, kFresh, &end_of_capsule);
  if (capsule == nullptr) throw pybind11::error_already_set();
  tensor.release();  // NOLINT: owned by the capsule from here on
  return pybind11::reinterpret_steal<pybind11::object>(capsule);
}

}  // namespace memload::python
