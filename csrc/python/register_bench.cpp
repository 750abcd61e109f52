#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/ceiling.h"
#include "bench/disk.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;
using bench::TeamTime;
using Rows = py::array_t<std::int64_t, py::array::c_style>;

DType dtype_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, DType>, 9> kNames{{{"u8", DType::u8},
                                                                      {"i8", DType::i8},
                                                                      {"i16", DType::i16},
                                                                      {"i32", DType::i32},
                                                                      {"i64", DType::i64},
                                                                      {"f16", DType::f16},
                                                                      {"bf16", DType::bf16},
                                                                      {"f32", DType::f32},
                                                                      {"f64", DType::f64}}};
  for (const auto& [known, dtype] : kNames) {
    if (known == name) return dtype;
  }
  throw std::invalid_argument("unknown dtype '" + std::string(name) + "'; known are u8, i8 ... bf16, f32, f64");
}

Isa isa_of(std::string_view name) {
  if (name.empty()) return best_isa();
  for (const Isa isa : available_isas()) {
    if (name_of(isa) == name) return isa;
  }
  throw std::invalid_argument("instruction set '" + std::string(name) + "' is not available here");
}

Store store_of(bool streaming) { return streaming ? Store::streaming : Store::cached; }

// Blocks of rows as bytes, one after another: shape (rows, row_bytes), the bytes of a row side by side.
using Blocks = std::vector<py::array_t<std::uint8_t>>;
using FieldTuple = std::tuple<Blocks, std::string, std::string, bool>;

std::vector<const std::byte*> addresses_of(const Blocks& blocks) {
  std::vector<const std::byte*> addresses;
  for (const auto& block : blocks) {
    if (block.ndim() != 2 || block.strides(1) != 1 || block.shape(1) != blocks.front().shape(1)) {
      throw std::invalid_argument("a block of rows has shape (rows, row_bytes), with the bytes of a row side by side");
    }
    const auto* base = static_cast<const std::byte*>(block.request().ptr);
    for (py::ssize_t row = 0; row < block.shape(0); ++row) addresses.push_back(base + row * block.strides(0));
  }
  return addresses;
}

bench::CeilingField plan_field(const FieldTuple& field, const Rows& plan) {
  const auto& [blocks, from, to, norm_removed] = field;
  if (blocks.empty()) throw std::invalid_argument("a field needs at least one block of rows");
  const std::vector<const std::byte*> addresses = addresses_of(blocks);
  bench::CeilingField planned;
  planned.row_bytes = static_cast<std::size_t>(blocks.front().shape(1));
  if (!from.empty()) planned.cast = CastRule{dtype_of(from), dtype_of(to), norm_removed};
  for (const std::int64_t row : std::span(plan.data(), static_cast<std::size_t>(plan.size()))) {
    if (row < 0 || static_cast<std::size_t>(row) >= addresses.size()) {
      throw py::index_error("row " + std::to_string(row) + " of the plan is out of range for " +
                            std::to_string(addresses.size()) + " rows");
    }
    planned.rows.push_back(addresses[static_cast<std::size_t>(row)]);
  }
  return planned;
}

// Keeps the arrays alive that the ceiling reads.
struct HeldCeiling {
  std::vector<FieldTuple> held;
  bench::Ceiling ceiling;
  std::mutex running{};  // a ceiling serves one caller at a time
};

std::unique_ptr<HeldCeiling> make_ceiling(std::vector<FieldTuple> fields, const Rows& plan, std::size_t batch_size,
                                          std::size_t threads, const std::string& isa) {
  std::vector<bench::CeilingField> planned;
  for (const FieldTuple& field : fields) planned.push_back(plan_field(field, plan));
  bench::Ceiling ceiling(std::move(planned), batch_size, threads, isa_of(isa));
  return std::unique_ptr<HeldCeiling>(new HeldCeiling{std::move(fields), std::move(ceiling)});
}

py::dict to_dict(const TeamTime& time) {
  py::dict result;
  result["seconds"] = time.seconds;
  result["cpu_seconds"] = time.cpu_seconds;
  return result;
}

py::dict run_ceiling(HeldCeiling& self, std::size_t batches, bool streaming) {
  bench::CeilingRun run;
  {
    const py::gil_scoped_release unlocked;
    const std::scoped_lock lock(self.running);
    run = self.ceiling.run(batches == 0 ? self.ceiling.batches_in_plan() : batches, store_of(streaming));
  }
  py::dict result = to_dict(run.time);
  result["batches"] = run.batches;
  result["rows"] = run.rows;
  result["bytes_out"] = run.bytes_out;
  return result;
}

py::bytes written(const HeldCeiling& self, std::size_t batch, std::size_t field) {
  const auto bytes = self.ceiling.written(batch, field);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::dict bench_memcpy(std::size_t nbytes, std::size_t threads, double seconds) {
  bench::CopyRun run;
  {
    const py::gil_scoped_release unlocked;
    run = bench::copy_rate(nbytes, threads, seconds);
  }
  py::dict result = to_dict(run.time);
  result["bytes"] = run.bytes;
  return result;
}

bench::ReadMethod method_of(std::string_view name) {
  if (name == "direct") return bench::ReadMethod::direct;
  if (name == "io_uring") return bench::ReadMethod::io_uring;
  throw std::invalid_argument("method is 'direct' or 'io_uring', not '" + std::string(name) + "'");
}

py::dict bench_disk(const std::string& path, const Rows& offsets, std::size_t nbytes, std::size_t in_flight,
                    const std::string& method) {
  const bench::ReadMethod how = method_of(method);
  const std::span rows(offsets.data(), static_cast<std::size_t>(offsets.size()));
  bench::DiskRun run;
  try {
    const py::gil_scoped_release unlocked;
    run = bench::read_rows(path, rows, nbytes, in_flight, how);
  } catch (const std::system_error& error) {
    PyErr_SetObject(PyExc_OSError, py::make_tuple(error.code().value(), error.what()).ptr());
    throw py::error_already_set();
  }
  py::dict result = to_dict(run.time);
  result["reads"] = run.reads;
  result["bytes"] = run.bytes;
  return result;
}

}  // namespace

void register_bench(py::module_& m) {
  py::class_<HeldCeiling>(m, "Ceiling", "Planned rows gathered and cast into four reused huge-page buffers.")
      .def(py::init(&make_ceiling), py::arg("fields"), py::arg("rows"), py::arg("batch_size"), py::arg("threads"),
           py::arg("isa") = "")
      .def_property_readonly("batches_in_plan", [](const HeldCeiling& self) { return self.ceiling.batches_in_plan(); })
      .def_property_readonly("batch_bytes", [](const HeldCeiling& self) { return self.ceiling.batch_bytes(); })
      .def("run", &run_ceiling, py::arg("batches") = 0, py::arg("streaming") = false,
           "Gathers that many batches (0: the whole plan once) and says how long it took.")
      .def("written", &written, py::arg("batch"), py::arg("field"),
           "The bytes that a batch of the last run wrote for a field; overwritten four batches later.");
  m.def("bench_memcpy", &bench_memcpy, py::arg("nbytes"), py::arg("threads"), py::arg("seconds"),
        "Copies between huge-page buffers for about that long: seconds, cpu_seconds, bytes.");
  m.def("bench_disk", &bench_disk, py::arg("path"), py::arg("offsets"), py::arg("nbytes"), py::arg("in_flight"),
        py::arg("method"), "Reads rows past the page cache: seconds, cpu_seconds, reads, bytes.");
}

}  // namespace memload::python
