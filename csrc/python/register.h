// One function per concept, each in a file of its own; module.cpp calls them in order.
#pragma once

#include <pybind11/pybind11.h>

namespace memload::python {

void register_cast(pybind11::module_& m);         // cast, isas
void register_codec(pybind11::module_& m);        // Chain: filters, decoded and encoded
void register_data(pybind11::module_& m);         // errors, Storage, Column
void register_ragged(pybind11::module_& m);       // Ragged
void register_tiles(pybind11::module_& m);        // TileGrid, Tiles
void register_row_cache(pybind11::module_& m);    // RowCache
void register_slices(pybind11::module_& m);       // Clock, Slices, EventCounts, EventItems
void register_block_table(pybind11::module_& m);  // CacheRoom, BlockTable
void register_blocks_of(pybind11::module_& m);    // BlocksOf
void register_tiers(pybind11::module_& m);        // what loads rows into memory
void register_windows(pybind11::module_& m);      // Windows
void register_permutation(pybind11::module_& m);  // torch.randperm
void register_device(pybind11::module_& m);       // Device, PinnedSlots
void register_slots(pybind11::module_& m);        // Spares, Slots: memory that Python fills
void register_plan(pybind11::module_& m);         // PlanQueue, RowIndex
void register_pipeline(pybind11::module_& m);     // FieldSpec, Pipeline
void register_bench(pybind11::module_& m);        // the ceilings that benchmarks are measured against

}  // namespace memload::python
