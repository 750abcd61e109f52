// The blocks of remote files: their table, and which of them rows lie in.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/io/block_table.h"
#include "core/io/sparse_file.h"
#include "python/block_rows.h"
#include "python/columns.h"
#include "python/convert.h"
#include "python/register.h"

namespace memload::python {
namespace {

namespace py = pybind11;

py::array_t<std::int64_t> array_of_blocks(const std::vector<std::int64_t>& blocks) {
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(blocks.size()), blocks.data());
}

// Raises what a signal raises that came meanwhile, after undo(): it would be raised as soon as the call returns, and
// nobody would know what it had claimed.
template <class Undo>
void check_signals(Undo&& undo) {
  if (PyErr_CheckSignals() == 0) return;
  const py::error_already_set raised;
  {
    const WithoutGil released;
    undo();
  }
  throw raised;
}

// Python raises what a signal raises before it takes what a call returned, too: hence a list, which the caller has.
void note(const std::optional<py::list>& claims, const py::array_t<std::int64_t>& claimed) {
  if (claims) py::list(*claims).append(claimed);
}

py::tuple hold_blocks(BlockTable& table, const Indices& blocks, std::uint64_t limit, bool again,
                      const std::optional<py::list>& claims) {
  BlockTable::Held held;
  {
    const WithoutGil released;
    held = table.hold(view(blocks), limit, again);
  }
  check_signals([&] {
    table.failed(held.claimed);
    if (!again) table.let_go(view(blocks));
  });
  const py::array_t<std::int64_t> claimed = array_of_blocks(held.claimed);
  note(claims, claimed);
  return py::make_tuple(claimed, array_of_blocks(held.arriving), array_of_blocks(held.lacking),
                        array_of_blocks(held.doubtful));
}

// Of a disk that is too full even for that, whoever waits for the blocks is told anyway.
void give_back_if_possible(int file, std::uint64_t offset, std::uint64_t bytes) {
  try {
    give_back(file, offset, bytes);
  } catch (const std::system_error&) {
  }
}

void store_blocks(BlockTable& table, std::int64_t first, const std::vector<std::uint64_t>& checksums, int file,
                  std::uint64_t offset, const py::buffer& data, bool reserve) {
  const Bytes bytes(data);
  const std::span<const std::byte> all = bytes.span();
  const WithoutGil released;
  const std::vector<BlockTable::Run> runs = table.begin_writing(first, static_cast<std::int64_t>(checksums.size()));
  for (std::size_t k = 0; k < runs.size(); ++k) {
    const auto skipped = static_cast<std::size_t>(runs[k].first - first);
    const auto count = static_cast<std::size_t>(runs[k].count);
    const std::size_t at = skipped * table.block_bytes();
    const std::size_t size = std::min(count * table.block_bytes(), all.size() - at);
    try {
      write_part(file, offset + at, all.subspan(at, size), reserve);
    } catch (const std::system_error&) {
      give_back_if_possible(file, offset + at, size);
      for (std::size_t left = k; left < runs.size(); ++left) table.unwritten(runs[left]);
      throw;
    }
    table.arrived(runs[k].first, std::span(checksums).subspan(skipped, count));
  }
}

py::array_t<std::int64_t> take_over_blocks(BlockTable& table, const Indices& blocks,
                                           const std::optional<py::list>& claims) {
  std::vector<std::int64_t> taken;
  {
    const WithoutGil released;
    taken = table.take_over(view(blocks));
  }
  check_signals([&] { table.failed(taken); });
  const py::array_t<std::int64_t> claimed = array_of_blocks(taken);
  note(claims, claimed);
  return claimed;
}

py::array_t<std::int64_t> left_blocks(BlockTable& table) {
  std::vector<std::int64_t> left;
  {
    const WithoutGil released;
    left = table.left();
  }
  return array_of_blocks(left);
}

// Of each file by its number: a descriptor, or -1, and where the file begins there.
using Places = std::map<std::size_t, std::pair<int, std::uint64_t>>;

BlockTable::Places places_of(const Places& given) {
  BlockTable::Places places;
  for (const auto& [number, place] : given) places[number] = {place.first, place.second};
  return places;
}

std::uint64_t evict_blocks(BlockTable& table, const Indices& blocks, const Places& files) {
  const BlockTable::Places places = places_of(files);
  const WithoutGil released;
  return table.evict(view(blocks), places);
}

std::uint64_t remove_left_blocks(BlockTable& table, const Places& files) {
  const BlockTable::Places places = places_of(files);
  const WithoutGil released;
  return table.remove_left(places);
}

template <auto kMethod>
void with_blocks(BlockTable& table, const Indices& blocks) {
  const WithoutGil released;
  (table.*kMethod)(view(blocks));
}

py::array_t<std::uint8_t> block_states(const BlockTable& table, std::int64_t first, std::int64_t count) {
  const std::vector<std::uint8_t> found = table.states(first, count);
  return py::array_t<std::uint8_t>(static_cast<py::ssize_t>(found.size()), found.data());
}

std::vector<std::uint64_t> first_blocks(const BlockTable& table) {
  std::vector<std::uint64_t> found;
  for (const BlockTable::File& file : table.files()) found.push_back(file.first);
  return found;
}

void wait_for_events(const CacheRoom& room, std::uint32_t seen, double seconds) {
  const WithoutGil released;
  room.wait(seen, std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds)));
}

bool wait_for_blocks(const BlockTable& table, const Indices& blocks, std::uint32_t called, double seconds) {
  const std::span<const std::int64_t> numbers = view(blocks);
  const WithoutGil released;
  return table.wait_for(numbers, called,
                        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds)));
}

void give_back_part(int file, std::uint64_t offset, std::uint64_t nbytes) {
  const WithoutGil released;
  give_back(file, offset, nbytes);
}

struct RoomLock {
  std::shared_ptr<CacheRoom> room;
  std::unique_ptr<CacheRoom::Lock> lock;
};

void enter_lock(RoomLock& context) {
  const WithoutGil released;
  context.lock = std::make_unique<CacheRoom::Lock>(*context.room);
}

void register_room(py::module_& m) {
  py::class_<RoomLock>(m, "RoomLock", "A context that has the lock of a room.")
      .def("__enter__", &enter_lock)
      .def("__exit__", [](RoomLock& context, const py::object& /*kind*/, const py::object& /*error*/,
                          const py::object& /*traceback*/) { context.lock.reset(); });
  py::class_<CacheRoom, std::shared_ptr<CacheRoom>>(
      m, "CacheRoom", "The room that the blocks of all sets of a cache share, counted in bytes.")
      .def(py::init([](const std::string& path) {
             const WithoutGil released;
             return CacheRoom::open(path);
           }),
           py::arg("path") = "",
           "A file that the processes of a machine share; \"\": memory of this process. Raises OSError.")
      .def_property_readonly("is_there", &CacheRoom::is_there,
                             "Whether its file is still where it was opened, and not removed or replaced.")
      .def("shut", &CacheRoom::shut, "Keep other processes from opening it, if none has it; returns whether.")
      .def("admit", &CacheRoom::admit, "Let other processes open it again.")
      .def_property_readonly("used", &CacheRoom::used, "Bytes of all blocks that are there, arriving or leaving.")
      .def("set_used", &CacheRoom::set_used, py::arg("nbytes"),
           "Correct the count, of a room that is shut, or with its lock.")
      .def_property_readonly("events", &CacheRoom::events, "A number that changes when something may have happened.")
      .def("wait", &wait_for_events, py::arg("seen"), py::arg("seconds"),
           "Wait until `events` differs from `seen`, or so long.")
      .def_property_readonly("calls", &CacheRoom::calls, "A number that changes when `call` was called.")
      .def(
          "lock", [](std::shared_ptr<CacheRoom> room) { return RoomLock{std::move(room), {}}; },
          "A context in which no table of the room changes. Raises OSError where another process keeps it.")
      .def("announce", &CacheRoom::announce, "Tell all who wait, in all processes, that something has happened.")
      .def("call", &CacheRoom::call, "Wake all who wait in this process, for blocks too, since there is more to do.");
}

}  // namespace

void register_block_table(py::module_& m) {
  register_room(m);
  m.def("give_back", &give_back_part, py::arg("file"), py::arg("offset"), py::arg("nbytes"),
        "Give the pages of a part of a file back to its file system; they read as zeros from then on. Raises OSError.");
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<BlockTable, std::shared_ptr<BlockTable>>(
      m, "BlockTable", "The state of the blocks of some files, which the processes of a machine share.")
      .def(py::init([](std::shared_ptr<CacheRoom> room, const std::string& path, std::uint64_t block_bytes,
                       const std::vector<std::uint64_t>& file_bytes) {
             const WithoutGil released;
             return BlockTable::open(std::move(room), path, block_bytes, file_bytes);
           }),
           py::arg("room"), py::arg("path"), py::arg("block_bytes"), py::arg("file_bytes"),
           "`path` \"\": for this process alone. Raises OSError, and RuntimeError for a file that is no such table.")
      .def_property_readonly("room", &BlockTable::room)
      .def_property_readonly("blocks", &BlockTable::blocks)
      .def_property_readonly("block_bytes", &BlockTable::block_bytes)
      .def_property_readonly("first_blocks", &first_blocks, "The first block of each file, and the end of the last.")
      .def_property_readonly("was_alone", &BlockTable::was_alone,
                             "Whether no other process had the table when it was opened.")
      .def_property_readonly("is_there", &BlockTable::is_there,
                             "Whether its file is still where it was opened, and not removed or replaced.")
      .def_property_readonly("is_alone", &BlockTable::is_alone, "Whether no other process has the table.")
      .def("bytes_of", &BlockTable::bytes_of, py::arg("block"))
      .def("hold", &hold_blocks, py::arg("blocks"), py::arg("limit"), py::arg("again") = false,
           py::arg("claims") = py::none(),
           "Pin blocks, and claim the absent ones while the room has at most `limit` bytes. Returns those that are "
           "claimed, arriving by others, lacking room, doubtful. The claimed ones are appended to `claims` before.")
      .def(
          "has_to_wait", [](const BlockTable& table, const Indices& blocks) { return table.has_to_wait(view(blocks)); },
          py::arg("blocks"), "Whether some arrive or leave, and none is absent, so that `hold` is of no use yet.")
      .def("wait_for", &wait_for_blocks, py::arg("blocks"), py::arg("called"), py::arg("seconds"),
           "Wait as long as `has_to_wait` and the room's `calls` is `called`, or so long; then return False.")
      .def("let_go", &with_blocks<&BlockTable::let_go>, py::arg("blocks"), "End one pin of each.")
      .def("store", &store_blocks, py::arg("first"), py::arg("checksums"), py::arg("file"), py::arg("offset"),
           py::arg("data"), py::arg("reserve"),
           "Write the bytes of claimed blocks at an offset of a file; then the blocks from `first` on are there, but "
           "for those that another process has taken over. With `reserve` the file system is asked for their space "
           "before. Raises OSError; then those that are not there have no bytes, and `failed` has to follow.")
      .def("take_over", &take_over_blocks, py::arg("blocks"), py::arg("claims") = py::none(),
           "Claim those that another process claimed and does not seem to bring; returns them. `claims`: as in `hold`.")
      .def_static("is_in_use", &BlockTable::is_in_use, py::arg("path"),
                  "Whether a process has the table in a file open, this one included. Raises OSError.")
      .def_static("held_bytes", &BlockTable::held_bytes, py::arg("path"), py::arg("block_bytes"), py::arg("file_bytes"),
                  release, "Bytes of all blocks that a table in a file counts, with the room's lock. Raises OSError.")
      .def("failed", &with_blocks<&BlockTable::failed>, py::arg("blocks"))
      .def("checksum", &BlockTable::checksum, py::arg("block"), release)
      .def("vouch", &BlockTable::vouch, py::arg("block"), release, "Returns False if the block is there no more.")
      .def("discard", &BlockTable::discard, py::arg("block"), release, "Let a block be `left`.")
      .def(
          "evict", &evict_blocks, py::arg("blocks"), py::arg("files"),
          "Remove blocks that are present and not pinned, and lie in one of some files; returns how many bytes. "
          "`files`: by its number a file's descriptor, or -1 if it is there no more, and where it begins there. Raises "
          "OSError if bytes cannot be given back; these blocks are `left`.")
      .def(
          "want", [](BlockTable& table, const Indices& blocks, bool wanted) { table.want(view(blocks), wanted); },
          py::arg("blocks"), py::arg("wanted"), "Say whether this process has a use for them.")
      .def(
          "states", &block_states, py::arg("first"), py::arg("count"),
          "Of each: 0 absent, 1 arriving, 2 present, 3 written or leaving; + 4 if pinned, + 8 if another process wants "
          "it, + 16 if another process moves it.")
      .def("hold_all", &BlockTable::hold_all, release, "Pin all blocks if all are present and beyond doubt.")
      .def("let_go_all", &BlockTable::let_go_all, release)
      .def("recover", &BlockTable::recover, release,
           "Clear what processes left that have ended; returns whether there was anything, and `left` may have some.")
      .def("left", &left_blocks,
           "Blocks that were discarded, that ended processes wrote or removed, or that could not be given back.")
      .def("remove_left", &remove_left_blocks, py::arg("files"),
           "Remove those that lie in one of some files; arguments, result and errors are those of `evict`.");
}

void register_blocks_of(py::module_& m) {
  py::class_<BlocksOf>(m, "BlocksOf", "Finds the blocks in which rows of some fields lie.")
      .def(py::init<const std::vector<PyColumn>&>(), py::arg("columns"))
      .def("__call__", &BlocksOf::of, py::arg("rows"),
           "(origin, its blocks in rising order) for each origin of mirrored storages. Raises IndexError.");
}

}  // namespace memload::python
