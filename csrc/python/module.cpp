#include "python/register.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "memload's native core: mapped storage, gather, cast and the pipeline of reused slots.";
  m.attr("version") = MEMLOAD_VERSION;
  memload::python::register_row_cache(m);
  memload::python::register_block_table(m);
  memload::python::register_data(m);
  memload::python::register_codec(m);
  memload::python::register_tiles(m);
  memload::python::register_ragged(m);
  memload::python::register_windows(m);
  memload::python::register_slices(m);
  memload::python::register_blocks_of(m);
  memload::python::register_tiers(m);
  memload::python::register_cast(m);
  memload::python::register_permutation(m);
  memload::python::register_device(m);
  memload::python::register_slots(m);
  memload::python::register_plan(m);
  memload::python::register_pipeline(m);
  memload::python::register_bench(m);
}
