// Between Python's objects and the core's views. Everything here runs with the GIL held.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace memload::python {

// Row indices: anything that converts to contiguous int64 without loss of meaning.
using Indices = pybind11::array_t<std::int64_t, pybind11::array::c_style>;

[[nodiscard]] inline std::span<const std::int64_t> view(const Indices& rows) {
  return {rows.data(), static_cast<std::size_t>(rows.size())};
}

// A contiguous buffer of Python's, held as long as this.
class Bytes {
 public:
  explicit Bytes(const pybind11::buffer& buffer) {
    if (PyObject_GetBuffer(buffer.ptr(), &view_, PyBUF_SIMPLE) != 0) throw pybind11::error_already_set();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  [[nodiscard]] std::span<const std::byte> span() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// Lets other Python threads run until its end. A daemon thread that comes back while the interpreter ends can no longer
// have the GIL: CPython up to 3.13 then unwinds its stack, which C++ ends by std::terminate. So it stays here, until
// the process's end takes it along.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil() noexcept(false);
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  bool ending_;  // then this is the thread that ends the interpreter, since no other one can have held the GIL
  PyThreadState* state_;
};

// Keeps a Python object alive from C++. May be let go on any thread, with or without the GIL, and after the
// interpreter; never waits for the GIL: without it, the object's end comes when another thread has it.
[[nodiscard]] std::shared_ptr<void> keep_alive(const pybind11::object& object);

}  // namespace memload::python
