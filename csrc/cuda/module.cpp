// memload._cuda: addresses, sizes and stream handles in, launches out. Knows no torch.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/copy_device.h"
#include "cuda/images.h"
#include "cuda/rows.h"
#include "cuda/shared_memory.h"

namespace py = pybind11;

namespace memload::cuda {
namespace {

Target target_named(const std::string& code) {
  if (code == "BF16") return Target::bf16;
  if (code == "F16") return Target::f16;
  if (code == "F32") return Target::f32;
  throw py::value_error("no CUDA cast to dtype " + code + " (known: BF16, F16, F32)");
}

void cast_stim_at(std::uintptr_t src, std::uintptr_t dst, std::size_t n, const std::string& to, bool norm_removed,
                  int device, std::uintptr_t stream) {
  const Target target = target_named(to);
  const py::gil_scoped_release nogil;  // a launch may wait for room in the stream's queue
  cast_stim(reinterpret_cast<const void*>(src), reinterpret_cast<void*>(dst), n, target, norm_removed, device,
            reinterpret_cast<void*>(stream));
}

py::capsule device(int index) {
  auto made = std::make_unique<std::shared_ptr<Device>>(copy_device(index));
  py::capsule capsule(made.get(), Device::kCapsule,
                      [](void* held) { delete static_cast<std::shared_ptr<Device>*>(held); });
  static_cast<void>(made.release());  // the capsule's from here on
  return capsule;
}

Element element_named(const std::string& code) {
  if (code == "U8") return Element::u8;
  if (code == "I8") return Element::i8;
  if (code == "I16") return Element::i16;
  if (code == "U16") return Element::u16;
  if (code == "F16") return Element::f16;
  if (code == "F32") return Element::f32;
  throw py::value_error("no CUDA cast from dtype " + code + " (known: U8, I8, I16, U16, F16, F32)");
}

How how_named(const std::string& name) {
  if (name == "plain") return How::plain;
  if (name == "norm_removed") return How::norm_removed;
  if (name == "scaled") return How::scaled;
  if (name == "computed") return How::computed;
  if (name == "by_reciprocal") return How::by_reciprocal;
  if (name == "fused") return How::fused;
  throw py::value_error("no CUDA cast called " + name);
}

// (from, to, how, scale, offset, address of the constants, channels, elements from one channel to the next)
using PyRule =
    std::tuple<std::string, std::string, std::string, float, float, std::uintptr_t, std::uint32_t, std::uint32_t>;

DeviceRule rule_of(const PyRule& given) {
  const auto& [from, to, how, scale, offset, constants, channels, inner] = given;
  const DeviceRule rule{element_named(from),
                        target_named(to),
                        how_named(how),
                        scale,
                        offset,
                        reinterpret_cast<const float*>(constants),
                        channels,
                        inner};
  const bool by_channel = rule.how == How::computed || rule.how == How::by_reciprocal || rule.how == How::fused;
  if (channels == 0 || inner == 0 || (by_channel && constants == 0)) {
    throw py::value_error("there are no such channels");
  }
  if (!std::isfinite(scale) || !std::isfinite(offset)) throw py::value_error("scale and offset are finite");
  return rule;
}

// (address of the numbers, address of the steps, how many steps); addresses of what is not there are 0
using PyChoice = std::tuple<std::uintptr_t, std::uintptr_t, std::uint32_t>;

RowChoice choice_of(const PyChoice& given) {
  const auto& [numbers, steps, count] = given;
  return {reinterpret_cast<const std::int64_t*>(numbers), reinterpret_cast<const std::int64_t*>(steps), count};
}

// beside: the kernel leaves most of the device to others
Grid grid_of(bool beside) { return beside ? Grid::beside_others : Grid::whole_device; }

// (address, rows) of each memory
using PyParts = std::vector<std::pair<std::uintptr_t, std::uint64_t>>;

StoredRows stored_of(const PyParts& parts) {
  StoredRows stored;
  for (const auto& [address, rows] : parts) stored.add({reinterpret_cast<const unsigned char*>(address), rows});
  return stored;
}

// What is the same for each batch of a field: the memories of its rows, their length, and the cast; without a cast rows
// are bytes, which are copied.
struct RowKernel {
  StoredRows stored;
  std::size_t length;
  std::optional<DeviceRule> rule;

  void launch(const StoredRows& from, void* dst, std::size_t rows, const RowChoice& choice, Grid grid, int device,
              void* stream) const {
    if (rule) {
      cast_rows(from, dst, rows, length, *rule, choice, grid, device, stream);
    } else {
      copy_rows(from, dst, rows, length, choice, grid, device, stream);
    }
  }
};

RowKernel row_kernel(const PyParts& parts, std::size_t length, const std::optional<PyRule>& rule) {
  return {stored_of(parts), length, rule ? std::optional(rule_of(*rule)) : std::nullopt};
}

// (kernel, address of the result, its rows, choice, (address, rows) of what stands for the kernel's last memory,
// beside)
using PyLaunch =
    std::tuple<const RowKernel*, std::uintptr_t, std::size_t, PyChoice, std::optional<PyParts::value_type>, bool>;

void launch_rows(const std::vector<PyLaunch>& launches, int device, std::uintptr_t stream) {
  const py::gil_scoped_release nogil;
  for (const auto& [kernel, dst, rows, choice, last, beside] : launches) {
    StoredRows stored = kernel->stored;
    if (last) stored.replace_last({reinterpret_cast<const unsigned char*>(last->first), last->second});
    kernel->launch(stored, reinterpret_cast<void*>(dst), rows, choice_of(choice), grid_of(beside), device,
                   reinterpret_cast<void*>(stream));
  }
}

// (height, width, channels, height and width of what is cut out, stored interleaved, result in planes)
using PyShape = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, bool, bool>;
using PyDraws = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

std::vector<ImageDraw> draws_of(const PyDraws& given, const ImageShape& shape, std::size_t least) {
  if (given.ndim() != 2 || given.shape(1) != 3 || static_cast<std::size_t>(given.shape(0)) < least) {
    throw py::value_error("draws are (rows, 3): top, left, flipped");
  }
  const auto each = given.unchecked<2>();
  std::vector<ImageDraw> draws;
  for (py::ssize_t i = 0; i < each.shape(0); ++i) {
    const std::int64_t top = each(i, 0);
    const std::int64_t left = each(i, 1);
    if (top < 0 || top + shape.out_height > shape.height || left < 0 || left + shape.out_width > shape.width) {
      throw py::value_error("the cut of row " + std::to_string(i) + " leaves its image");
    }
    draws.push_back({static_cast<std::uint32_t>(top), static_cast<std::uint32_t>(left), each(i, 2) != 0});
  }
  return draws;
}

void augment_images_at(std::uintptr_t src, std::uintptr_t dst, std::size_t images, std::size_t images_per_draw,
                       const PyDraws& draws, const PyShape& given, const PyRule& rule, int device,
                       std::uintptr_t stream) {
  const auto& [height, width, channels, out_height, out_width, interleaved, planes] = given;
  const ImageShape shape{height, width, channels, out_height, out_width, interleaved, planes};
  const double elements = static_cast<double>(height) * width * channels;
  if (images_per_draw == 0 || !(interleaved || planes) || elements >= 2147483648.0) {
    throw py::value_error("there are no such images");
  }
  const DeviceRule checked = rule_of(rule);
  const auto drawn = draws_of(draws, shape, (images + images_per_draw - 1) / images_per_draw);
  const py::gil_scoped_release nogil;
  augment_images(reinterpret_cast<const void*>(src), reinterpret_cast<void*>(dst), images, images_per_draw,
                 drawn.data(), shape, checked, device, reinterpret_cast<void*>(stream));
}

std::tuple<std::uintptr_t, py::bytes> allocate_shared_on(std::size_t nbytes, int device) {
  SharedMemory made{};
  {
    const py::gil_scoped_release nogil;
    made = allocate_shared(nbytes, device);
  }
  return {made.address, py::bytes(made.handle)};
}

std::uintptr_t open_shared_on(const py::bytes& handle, int device) {
  const std::string given = handle;
  const py::gil_scoped_release nogil;
  return open_shared(given, device);
}

}  // namespace
}  // namespace memload::cuda

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "memload's CUDA kernels.";
  m.attr("version") = MEMLOAD_VERSION;
  m.attr("architectures") = MEMLOAD_CUDA_ARCHITECTURES;
  m.attr("toolkit") = MEMLOAD_CUDA_TOOLKIT;
  m.def("cast_stim", memload::cuda::cast_stim_at, py::arg("src_address"), py::arg("dst_address"), py::arg("n"),
        py::arg("to_code"), py::arg("norm_removed"), py::arg("device"), py::arg("stream"),
        "Cast n uint8 pixels on a device, asynchronously on the stream with this handle.");
  m.def("device", memload::cuda::device, py::arg("index"),
        "What memload._core.Device takes, for a device that exists. Raises RuntimeError.");
  py::class_<memload::cuda::RowKernel>(m, "RowKernel", "Gathers rows out of some memories, and casts them.")
      .def(py::init(&memload::cuda::row_kernel), py::arg("parts"), py::arg("length"), py::arg("rule") = py::none(),
           "parts: (address, stored rows) of each memory, whose rows are numbered one part after the other; length: "
           "elements of a row, or without a rule its bytes; rule: (from, to, how, scale, offset, address of means, "
           "deviations and their reciprocals or of factors and shifts, channels, elements from one channel to the "
           "next).");
  m.def(
      "launch_rows", memload::cuda::launch_rows, py::arg("launches"), py::arg("device"), py::arg("stream"),
      "Gather rows by each of some kernels, asynchronously on the stream with this handle. launches: (kernel, address "
      "of the result, its rows, choice, (address, rows) of memory that stands for the kernel's last one or None, "
      "whether the kernel leaves most of the device to others); choice: (address of the rows' numbers, address of the "
      "steps of windows, how many steps).");
  m.def("augment_images", memload::cuda::augment_images_at, py::arg("src_address"), py::arg("dst_address"),
        py::arg("images"), py::arg("images_per_draw"), py::arg("draws"), py::arg("shape"), py::arg("rule"),
        py::arg("device"), py::arg("stream"),
        "Cut, flip, lay out and cast images, asynchronously on the stream with this handle; as "
        "memload._core.augment_images.");
  m.def("mapped_address", memload::cuda::mapped_address, py::arg("host_address"), py::arg("device"),
        "The address by which a device reads this address of pinned memory.");
  m.def("allocate_shared", memload::cuda::allocate_shared_on, py::arg("nbytes"), py::arg("device"),
        "Memory of a device that other processes can open: its address, and the handle to open it by.");
  m.def("free_shared", memload::cuda::free_shared, py::arg("address"), py::arg("device"),
        py::call_guard<py::gil_scoped_release>(), "Free such memory, once no other process has it open.");
  m.def("open_shared", memload::cuda::open_shared_on, py::arg("handle"), py::arg("device"),
        "The address by which kernels of a device read the memory of another process.");
  m.def("close_shared", memload::cuda::close_shared, py::arg("address"), py::arg("device"),
        py::call_guard<py::gil_scoped_release>(), "Close it, once no kernel of this process reads it.");
  m.def("unusable_reason", memload::cuda::unusable_reason, py::arg("device"),
        "Why the kernels do not run on this device with this driver; \"\" if they do.");
}
