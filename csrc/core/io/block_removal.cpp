// How blocks leave a table: one call takes them out of use, their bytes out of their files, and them out of the count.
//
// Whoever has a leaving block, in a list of its own, is alone with it: a second hole would be punched into the bytes of
// a newer download. What it cannot remove it puts into `left_`, from which the next one takes it.
#include <algorithm>
#include <system_error>
#include <utility>

#include "core/io/block_table.h"
#include "core/io/block_words.h"
#include "core/io/sparse_file.h"

namespace memload {

std::uint64_t BlockTable::evict(std::span<const std::int64_t> blocks, const Places& places) {
  check(blocks);
  std::vector<std::int64_t> leaving;
  leaving.reserve(blocks.size());  // what has left, and cannot be noted, would be nobody's
  {
    const CacheRoom::Lock lock(*room_);
    end_late();
    if (head_->whole.load() != 0) return 0;
    for (const std::int64_t number : blocks) {
      Block& block = table_[number];
      if (state_of(block.state.load()) != kPresent || block.pins.load() != 0) continue;
      if (!places.contains(file_of(number))) continue;
      block.state.store(word_of(kLeaving, place_));
      leaving.push_back(number);
    }
  }
  return remove(leaving, places);
}

std::vector<std::int64_t> BlockTable::left() {
  const CacheRoom::Lock lock(*room_);
  end_late();
  return left_;
}

std::uint64_t BlockTable::remove_left(const Places& places) {
  std::vector<std::int64_t> leaving;
  {
    const CacheRoom::Lock lock(*room_);
    end_late();
    const auto stated = std::partition(left_.begin(), left_.end(),
                                       [&](std::int64_t number) { return !places.contains(file_of(number)); });
    leaving.assign(stated, left_.end());
    left_.erase(stated, left_.end());
  }
  return remove(leaving, places);
}

std::uint64_t BlockTable::remove(std::span<std::int64_t> leaving, const Places& places) {
  if (leaving.empty()) return 0;
  std::uint64_t bytes = 0;
  std::error_code why;
  const auto is_removed = [&](std::int64_t number) {
    const std::size_t file = file_of(number);
    const Place& place = places.at(file);
    const std::uint64_t at = (static_cast<std::uint64_t>(number) - files_[file].first) * block_bytes_;
    try {
      if (place.file >= 0) give_back(place.file, place.begin + at, bytes_of(number));
      bytes += bytes_of(number);
      return true;
    } catch (const std::system_error& error) {
      why = error.code();
      return false;
    }
  };
  const auto refused = std::partition(leaving.begin(), leaving.end(), is_removed);
  end({leaving.begin(), refused}, &BlockTable::end_leaving);
  if (refused == leaving.end()) return bytes;
  end({refused, leaving.end()}, &BlockTable::end_in_vain);
  const std::string where = path_.empty() ? "a cache in memory" : path_;
  throw std::system_error(why, where + ": the file system does not take back the bytes of " +
                                   std::to_string(leaving.end() - refused) +
                                   " of its blocks, which count until it does; try again, or end what reads through "
                                   "the cache, and remove its folder");
}

void BlockTable::end_leaving(std::int64_t number) {
  if (is_own(number, kLeaving)) free(number);
}

void BlockTable::end_in_vain(std::int64_t number) {
  if (is_own(number, kLeaving)) left_.push_back(number);
}

}  // namespace memload
