// Planned rows, and the numbers by which they are stored.
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>

#include "core/columns/row_index.h"
#include "core/pass/plan_queue.h"
#include "python/register.h"
#include "python/rows.h"

namespace memload::python {
namespace {

namespace py = pybind11;

Indices take(PlanQueue& plan) {
  if (!plan.ready()) throw std::out_of_range("no batch is planned");
  return array_of(plan.take());
}

RowIndex index_of(const std::optional<Indices>& stored, std::int64_t rows) {
  return stored ? RowIndex(keep_alive(*stored), view(*stored)) : RowIndex(rows);
}

void register_index(py::module_& m) {
  py::class_<RowIndex>(m, "RowIndex", "The stored number of each row.")
      .def(py::init(&index_of), py::arg("stored"), py::arg("rows"),
           "stored: the number of each row; None: of so many rows, row k is number k.")
      .def(
          "numbers", [](const RowIndex& index, const Indices& rows) { return array_of(index.numbers(view(rows))); },
          py::arg("rows"), "The numbers of some rows. Raises IndexError for one that does not exist.");
}

void register_queue(py::module_& m) {
  py::class_<PlanQueue>(m, "PlanQueue",
                        "The rows of a plan, from which batches are cut: of a stream of rows, or each by itself.")
      .def(py::init<std::size_t, bool>(), py::arg("batch_rows"), py::arg("drop_last"))
      .def(
          "extend", [](PlanQueue& plan, const Indices& rows) { plan.extend(of_stream(rows)); }, py::arg("rows"),
          "Plan rows, to be cut into batches of batch_rows.")
      .def(
          "push", [](PlanQueue& plan, const Indices& rows) { plan.push(copied(rows)); }, py::arg("rows"),
          "Plan one batch of exactly these rows.")
      .def("finish", &PlanQueue::finish, "No more rows will come.")
      .def(
          "put_back", [](PlanQueue& plan, const Indices& rows) { plan.put_back(copied(rows)); }, py::arg("rows"),
          "Put a batch that was taken back to the front.")
      .def_property_readonly("ready", &PlanQueue::ready, "Whether the next batch is known.")
      .def("take", &take, "The rows of the next batch. Raises IndexError if there is none now.");
}

}  // namespace

void register_plan(py::module_& m) {
  register_queue(m);
  register_index(m);
}

}  // namespace memload::python
