#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "cast/augment.h"
#include "cast/cast.h"
#include "cast/parallel.h"
#include "cast/resize.h"
#include "python/casts.h"
#include "python/convert.h"
#include "python/names.h"
#include "python/register.h"

namespace py = pybind11;

namespace memload::python {
namespace {

void cast(std::uintptr_t src, std::uintptr_t dst, std::size_t n, const std::string& from, const std::string& to,
          const PyHow& how, const std::string& isa, bool streaming, std::size_t threads) {
  const CastRule rule = rule_of({from, to, how});
  if (dst % size_of(rule.to) != 0) throw py::value_error("the destination is not aligned to elements of " + to);
  const Isa chosen = isa_named(isa);
  const auto affine = affine_of(how);
  const WithoutGil nogil;
  if (affine) {
    return affine_parallel(rule.from, rule.to, *affine, chosen, store_of(streaming),
                           reinterpret_cast<const std::byte*>(src), reinterpret_cast<std::byte*>(dst), n, threads);
  }
  cast_parallel(rule, chosen, store_of(streaming), reinterpret_cast<const std::byte*>(src),
                reinterpret_cast<std::byte*>(dst), n, threads);
}

using PyDraws = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

std::vector<ImageDraw> given_draws(const PyDraws& given) {
  if (given.ndim() != 2 || given.shape(1) != 3) throw py::value_error("draws are (rows, 3): top, left, flipped");
  const auto each = given.unchecked<2>();
  std::vector<ImageDraw> draws;
  draws.reserve(static_cast<std::size_t>(each.shape(0)));
  for (py::ssize_t i = 0; i < each.shape(0); ++i) {
    if (!std::in_range<std::uint32_t>(each(i, 0)) || !std::in_range<std::uint32_t>(each(i, 1))) {
      throw py::value_error("the draw of row " + std::to_string(i) + " is of no image");
    }
    draws.push_back({static_cast<std::uint32_t>(each(i, 0)), static_cast<std::uint32_t>(each(i, 1)), each(i, 2) != 0});
  }
  return draws;
}

void augment(std::uintptr_t src, std::uintptr_t dst, std::size_t images, std::size_t images_per_draw,
             const PyDraws& draws, const PyShape& shape, const PyCast& cast, const std::string& isa,
             std::size_t threads) {
  const auto affine = affine_of(std::get<2>(cast));
  const ImageJob job{shape_of(shape), rule_of(cast), affine.get()};
  if (dst % size_of(job.rule.to) != 0) throw py::value_error("the destination is not aligned to its elements");
  const std::vector<ImageDraw> drawn = given_draws(draws);
  const Isa chosen = isa_named(isa);
  const WithoutGil nogil;
  augment_images(job, chosen, reinterpret_cast<const std::byte*>(src), reinterpret_cast<std::byte*>(dst), images,
                 images_per_draw, drawn, threads);
}

std::vector<ResizeDraw> resizes_of(const PyDraws& given) {
  if (given.ndim() != 2 || given.shape(1) != 5) {
    throw py::value_error("draws are (rows, 5): top, left, flipped, height, width");
  }
  const auto each = given.unchecked<2>();
  std::vector<ResizeDraw> draws;
  draws.reserve(static_cast<std::size_t>(each.shape(0)));
  for (py::ssize_t i = 0; i < each.shape(0); ++i) {
    const auto side = [&](py::ssize_t k) {
      if (std::in_range<std::uint32_t>(each(i, k))) return static_cast<std::uint32_t>(each(i, k));
      throw py::value_error("the draw of row " + std::to_string(i) + " is of no image");
    };
    draws.push_back({{side(0), side(1), each(i, 2) != 0}, side(3), side(4)});
  }
  return draws;
}

void resize(std::uintptr_t src, std::uintptr_t dst, std::size_t images, std::size_t images_per_draw,
            const PyDraws& draws, const PyShape& shape, const PyMethod& method, const PyCast& cast,
            const std::string& isa, std::size_t threads) {
  const auto affine = affine_of(std::get<2>(cast));
  const ResizeJob job = resize_job(shape_of(shape), method_of(method), rule_of(cast), affine.get());
  if (dst % size_of(job.rule.to) != 0) throw py::value_error("the destination is not aligned to its elements");
  const std::vector<ResizeDraw> drawn = resizes_of(draws);
  const Isa chosen = isa_named(isa);
  const WithoutGil nogil;
  resize_images(job, chosen, reinterpret_cast<const std::byte*>(src), reinterpret_cast<std::byte*>(dst), images,
                images_per_draw, drawn, threads);
}

PyDraws image_draws(const std::vector<std::uint64_t>& seeds, const PyShape& given, const PyDrawRule& given_rule) {
  const DrawRule rule = draws_of(given_rule);
  const ImageShape shape = shape_of(given);
  const py::ssize_t columns = rule.part ? 5 : 3;
  PyDraws draws({static_cast<py::ssize_t>(seeds.size()), columns});
  auto each = draws.mutable_unchecked<2>();
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const ResizeDraw draw = draw_of(rule, shape, seeds[i]);
    const std::array<std::int64_t, 5> row{draw.top, draw.left, draw.flipped ? 1 : 0, draw.height, draw.width};
    for (py::ssize_t k = 0; k < columns; ++k) each(static_cast<py::ssize_t>(i), k) = row[static_cast<std::size_t>(k)];
  }
  return draws;
}

void copy(std::uintptr_t src, std::uintptr_t dst, std::size_t nbytes, const std::string& isa, bool streaming) {
  const CopyFn function = find_copy(isa_named(isa), store_of(streaming));
  const WithoutGil nogil;
  function(reinterpret_cast<const std::byte*>(src), reinterpret_cast<std::byte*>(dst), nbytes);
  store_fence();
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Isa isa : available_isas()) names.emplace_back(name_of(isa));
  return names;
}

}  // namespace

void register_cast(py::module_& m) {
  m.def("cast", cast, py::arg("src_address"), py::arg("dst_address"), py::arg("n"), py::arg("from_code"),
        py::arg("to_code"), py::arg("how") = PyHow(false), py::arg("isa") = "", py::arg("streaming") = false,
        py::arg("threads") = 1,
        "Cast n elements from one address to another; dtypes by their safetensors names, isa \"\" for the best. "
        "how: norm_removed, or constants (elements from one channel to the next, scale, offset, means, deviations).");
  m.def("augment_images", augment, py::arg("src_address"), py::arg("dst_address"), py::arg("images"),
        py::arg("images_per_draw"), py::arg("draws"), py::arg("shape"), py::arg("cast"), py::arg("isa") = "",
        py::arg("threads") = 1,
        "Cut, flip, lay out and cast images; shape: (height, width, channels, height and width of the result, stored "
        "interleaved, result in planes); cast: (from, to, how); draws: (rows, 3) of top, left, flipped.");
  m.def(
      "resize_images", resize, py::arg("src_address"), py::arg("dst_address"), py::arg("images"),
      py::arg("images_per_draw"), py::arg("draws"), py::arg("shape"), py::arg("method"), py::arg("cast"),
      py::arg("isa") = "", py::arg("threads") = 1,
      "Resize a part of each image, flip, lay out and cast it, as augment_images; method: ((top, left, height, width) "
      "of the resized pixels in the result, nearest, antialias, padding); draws: (rows, 5) of top, left, flipped, "
      "height, width.");
  m.def(
      "image_draws", image_draws, py::arg("seeds"), py::arg("shape"), py::arg("rule"),
      "The draws of rows with these seeds: int64 (rows, 3) of top, left, flipped, and of images that are resized "
      "(rows, 5), height and width of the part behind them; shape: as of augment_images(); rule: (stream, probability "
      "of a flip, None or ((top, left, height, width), None or (least and greatest area, least and greatest width / "
      "height))): the part where nothing is drawn, or none that is drawn fits.");
  m.def("copy", copy, py::arg("src_address"), py::arg("dst_address"), py::arg("nbytes"), py::arg("isa") = "",
        py::arg("streaming") = false, "Copy bytes from one address to another.");
  m.def("isas", isas, "The instruction sets that this build holds and this machine runs, the best last.");
}

}  // namespace memload::python
