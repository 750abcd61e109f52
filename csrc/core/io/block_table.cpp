#include "core/io/block_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/fork.h"
#include "core/base/memory.h"
#include "core/io/block_words.h"
#include "core/io/shared_file.h"

namespace memload {
namespace {

constexpr std::uint64_t kTableMagic = 0x32304b4c424c4d4d;  // "MMLBLK02"
// Bytes of the files at which locks stand; they lie behind all content.
constexpr off_t kPlacesAt = (off_t{1} << 60) + 64;
// That the lock is waited for by what need not have it now: a destructor, which may have the GIL, and further ends.
constexpr std::chrono::milliseconds kLongestEnd{50};

std::vector<BlockTable::File> numbered(std::uint64_t block_bytes, const std::vector<std::uint64_t>& file_bytes) {
  if (block_bytes == 0 || block_bytes % kPage != 0) throw std::invalid_argument("blocks are whole pages");
  std::vector<BlockTable::File> files;
  std::uint64_t first = 0;
  for (const std::uint64_t bytes : file_bytes) {
    files.push_back({bytes, first});
    first += bytes / block_bytes + (bytes % block_bytes != 0 ? 1 : 0);
  }
  files.push_back({0, first});  // the end
  return files;
}

}  // namespace

std::shared_ptr<BlockTable> BlockTable::open(std::shared_ptr<CacheRoom> room, const std::string& path,
                                             std::uint64_t block_bytes, const std::vector<std::uint64_t>& file_bytes) {
  std::shared_ptr<BlockTable> table(
      new BlockTable(std::move(room), path, block_bytes, numbered(block_bytes, file_bytes)));
  table->attach();
  return table;
}

BlockTable::BlockTable(std::shared_ptr<CacheRoom> room, std::string path, std::uint64_t block_bytes,
                       std::vector<File> files)
    : room_(std::move(room)),
      path_(std::move(path)),
      block_bytes_(block_bytes),
      files_(std::move(files)),
      blocks_(static_cast<std::int64_t>(files_.back().first)),
      mapped_(kPage + static_cast<std::size_t>(blocks_) * sizeof(Block)),
      born_(fork_generation()),
      pins_(static_cast<std::size_t>(blocks_)) {}

std::uint64_t BlockTable::held_bytes(const std::string& path, std::uint64_t block_bytes,
                                     const std::vector<std::uint64_t>& file_bytes) {
  const std::vector<File> files = numbered(block_bytes, file_bytes);
  const std::size_t mapped = kPage + static_cast<std::size_t>(files.back().first) * sizeof(Block);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return 0;
  if (file < 0) throw_errno(path + ": cannot open");
  struct stat info{};
  const bool is_made = ::fstat(file, &info) == 0 && static_cast<std::size_t>(info.st_size) >= mapped;
  void* const memory = is_made ? ::mmap(nullptr, mapped, PROT_READ, MAP_SHARED, file, 0) : nullptr;
  ::close(file);
  if (memory == nullptr) return 0;
  if (memory == MAP_FAILED) throw_errno(path + ": cannot map");
  const auto* const blocks = reinterpret_cast<const Block*>(static_cast<const std::byte*>(memory) + kPage);
  std::uint64_t bytes = 0;
  for (std::size_t k = 0; k + 1 < files.size(); ++k) {
    for (std::uint64_t number = files[k].first; number < files[k + 1].first; ++number) {
      if (state_of(blocks[number].state.load()) == kAbsent) continue;
      bytes += std::min(block_bytes, files[k].bytes - (number - files[k].first) * block_bytes);
    }
  }
  ::munmap(memory, mapped);
  return bytes;
}

bool BlockTable::is_in_use(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return false;
  if (file < 0) throw_errno(path + ": cannot open");
  const bool is_free = lock_bytes(file, F_OFD_GETLK, F_WRLCK, kPlacesAt, kPlaces) == 0;
  ::close(file);
  return !is_free;
}

BlockTable::~BlockTable() {
  if (table_ != nullptr && born_ == fork_generation()) {
    try {
      const CacheRoom::Lock lock(*room_, kLongestEnd);
      clear(std::uint64_t{1} << place_);
    } catch (const std::exception&) {  // the next one that looks clears it: the place is nobody's from now on
    }
    lock_bytes(file_, F_OFD_SETLK, F_UNLCK, kPlacesAt + place_);  // which children that were forked would keep
  }
  if (head_ != nullptr) ::munmap(head_, mapped_);
  if (file_ >= 0) ::close(file_);
}

void BlockTable::attach() {
  static_assert(sizeof(Head) <= kPage && sizeof(Block) == 32);
  file_ = path_.empty() ? memory_file("memload-blocks") : open_file(path_);
  const CacheRoom::Lock lock(*room_);
  if (!path_.empty() && is_removed(file_)) {
    throw std::system_error(ENOENT, std::generic_category(), path_ + ": removed by another process");
  }
  auto* const memory = static_cast<std::byte*>(map_file(file_, mapped_, path_));
  head_ = reinterpret_cast<Head*>(memory);
  if (head_->magic == 0) {
    head_->block_bytes = block_bytes_;
    head_->blocks = blocks_;
    head_->magic = kTableMagic;
  }
  if (head_->magic != kTableMagic || head_->block_bytes != block_bytes_ || head_->blocks != blocks_) {
    throw std::runtime_error(path_ + ": not the table of these blocks; remove the folder that it is in");
  }
  take_place();
  const auto* const blocks = reinterpret_cast<const Block*>(memory + kPage);
  std::uint64_t dead = std::uint64_t{1} << place_;
  for (unsigned place = 0; place < kPlaces; ++place) {
    if (place != place_ && !is_alive(place)) dead |= std::uint64_t{1} << place;
  }
  was_alone_ = dead == ~std::uint64_t{0};
  if (was_alone_) head_->era = next_era(blocks);
  table_ = reinterpret_cast<Block*>(memory + kPage);
  clear(dead);
}

// A later one than that of any block. Of the pages that a power failure left, the head's may be older than the others,
// so that what it says next may be an era in which blocks came whose bytes are lost.
std::uint32_t BlockTable::next_era(const Block* blocks) const {
  std::uint32_t latest = head_->era;
  bool valid = true;
  for (std::int64_t number = 0; number < blocks_; ++number) {
    latest = std::max(latest, blocks[number].era);
    valid = valid && is_valid(blocks[number].state.load());
  }
  if (!valid || latest == ~std::uint32_t{0}) throw std::runtime_error(path_ + ": the table of blocks is damaged");
  return latest + 1;
}

void BlockTable::take_place() {
  for (unsigned place = 0; place < kPlaces; ++place) {
    if (lock_bytes(file_, F_OFD_SETLK, F_WRLCK, kPlacesAt + place) == 0) {
      place_ = place;
      return;
    }
  }
  throw std::runtime_error(path_ + ": 64 processes read through this cache already; give further ones another folder");
}

bool BlockTable::counts() const { return path_.empty() || !is_removed(file_); }

bool BlockTable::is_there() const { return path_.empty() || lies_at(file_, path_); }

bool BlockTable::is_alone() const {
  for (unsigned place = 0; place < kPlaces; ++place) {
    if (place != place_ && is_alive(place)) return false;
  }
  return true;
}

bool BlockTable::is_alive(unsigned place) const {
  return lock_bytes(file_, F_OFD_GETLK, F_WRLCK, kPlacesAt + place) != 0;
}

// With the room's lock.
bool BlockTable::clear(std::uint64_t dead) {
  bool found = (head_->whole.fetch_and(~dead) & dead) != 0;
  for (std::int64_t number = 0; number < blocks_; ++number) {
    Block& block = table_[number];
    const std::uint32_t word = block.state.load();
    if (word == 0 && block.pins.load() == 0 && block.wanted.load() == 0) continue;
    if ((block.pins.load() & dead) != 0) found = (block.pins.fetch_and(~dead), true);
    block.wanted.fetch_and(~dead);
    if (!has_owner(state_of(word)) || (dead >> owner_of(word) & 1) == 0) continue;
    found = true;
    if (state_of(word) == kArriving) {
      free(number);
    } else {  // some of its bytes may be in the file
      block.state.store(word_of(kLeaving, place_));
      left_.push_back(number);
    }
  }
  return found;
}

bool BlockTable::recover() {
  bool found = false;
  {
    const CacheRoom::Lock lock(*room_);
    end_late();
    std::uint64_t dead = 0;
    for (unsigned place = 0; place < kPlaces; ++place) {
      if (place != place_ && !is_alive(place)) dead |= std::uint64_t{1} << place;
    }
    found = clear(dead);
  }
  if (found) room_->announce();
  return found;
}

std::size_t BlockTable::file_of(std::int64_t block) const {
  const auto number = static_cast<std::uint64_t>(block);
  const auto next = std::upper_bound(files_.begin(), files_.end(), number,
                                     [](std::uint64_t one, const File& file) { return one < file.first; });
  return static_cast<std::size_t>(next - files_.begin()) - 1;
}

std::uint64_t BlockTable::bytes_of(std::int64_t block) const {
  check({&block, 1});
  const File& file = files_[file_of(block)];
  const std::uint64_t at = (static_cast<std::uint64_t>(block) - file.first) * block_bytes_;
  return std::min(block_bytes_, file.bytes - at);
}

std::span<const std::int64_t> BlockTable::check(std::span<const std::int64_t> blocks) const {
  for (const std::int64_t number : blocks) {
    if (number < 0 || number >= blocks_) {
      throw std::out_of_range("block " + std::to_string(number) + " is not one of " + std::to_string(blocks_));
    }
  }
  return blocks;
}

void BlockTable::check_range(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first > blocks_ || count > blocks_ - first) {
    throw std::out_of_range(std::to_string(count) + " blocks from " + std::to_string(first) + " on are not among the " +
                            std::to_string(blocks_));
  }
}

bool BlockTable::is_own(std::int64_t number, std::uint32_t state) const {
  return table_[number].state.load() == (state | place_ << kStateBits);
}

// With the room's lock. The bytes are counted before the state says so, and the other way round in free(): whoever dies
// between the two leaves too much in the count, and never too little. Blocks of a table that was removed do not count,
// since whoever counts anew does not find them.
void BlockTable::claim(std::int64_t number, std::uint64_t limit, Held& held) {
  const std::uint64_t bytes = bytes_of(number);
  if (room_->used() + bytes > limit) {
    held.lacking.push_back(number);
    return;
  }
  if (counts()) room_->set_used(room_->used() + bytes);
  table_[number].state.store(word_of(kArriving, place_));
  held.claimed.push_back(number);
}

// With the room's lock.
void BlockTable::free(std::int64_t number) {
  table_[number].state.store(word_of(kAbsent, 0));
  if (!counts()) return;
  const std::uint64_t bytes = bytes_of(number);
  room_->set_used(room_->used() - std::min(room_->used(), bytes));
}

BlockTable::Held BlockTable::hold(std::span<const std::int64_t> blocks, std::uint64_t limit, bool again) {
  check(blocks);
  Held held;
  const CacheRoom::Lock lock(*room_);
  end_late();
  for (const std::int64_t number : blocks) {
    Block& block = table_[number];
    if (!again && pins_[static_cast<std::size_t>(number)].fetch_add(1) == 0) {
      block.pins.fetch_or(std::uint64_t{1} << place_);
    }
    switch (state_of(block.state.load())) {
      case kAbsent:
        claim(number, limit, held);
        break;
      case kArriving:
      case kWritten:
      case kLeaving:
        held.arriving.push_back(number);
        break;
      case kPresent:
        if (block.era != head_->era) held.doubtful.push_back(number);
        break;
    }
  }
  return held;
}

// What ends something is never lost: where the lock is not to be had, it is done before whatever has it next.
void BlockTable::end(std::span<const std::int64_t> blocks, End one) {
  if (born_ != fork_generation()) return;  // what is to end is the parent's
  try {
    const CacheRoom::Lock lock(*room_, longest_end());
    end_late();
    for (const std::int64_t number : blocks) (this->*one)(number);
  } catch (const std::system_error&) {
    const std::lock_guard<std::mutex> guard(late_mutex_);
    for (const std::int64_t number : blocks) late_.emplace_back(number, one);
  }
  room_->announce();
}

// Once one end was not done, those that follow it wait no longer: each of them would do so for as long again.
std::chrono::milliseconds BlockTable::longest_end() {
  const std::lock_guard<std::mutex> guard(late_mutex_);
  return late_.empty() ? room_->longest_lock() : std::min(room_->longest_lock(), kLongestEnd);
}

// With the room's lock.
void BlockTable::end_late() {
  const std::lock_guard<std::mutex> guard(late_mutex_);
  for (const auto& [number, one] : late_) (this->*one)(number);
  late_.clear();
}

void BlockTable::end_pin(std::int64_t number) {
  std::atomic<std::uint32_t>& pins = pins_[static_cast<std::size_t>(number)];
  if (pins.load() != 0 && pins.fetch_sub(1) == 1) table_[number].pins.fetch_and(~(std::uint64_t{1} << place_));
}

void BlockTable::end_writing(std::int64_t number) {
  if (!is_own(number, kWritten)) return;
  table_[number].era = head_->era;
  table_[number].state.store(word_of(kPresent, 0));
}

void BlockTable::end_trial(std::int64_t number) {
  if (is_own(number, kWritten)) table_[number].state.store(word_of(kArriving, place_));
}

void BlockTable::end_claim(std::int64_t number) {
  if (is_own(number, kArriving)) free(number);
}

void BlockTable::let_go(std::span<const std::int64_t> blocks) { end(check(blocks), &BlockTable::end_pin); }
void BlockTable::failed(std::span<const std::int64_t> blocks) { end(check(blocks), &BlockTable::end_claim); }
void BlockTable::unwritten(Run run) { end(numbers_of(run), &BlockTable::end_trial); }

// Nobody else reads or writes the checksum of a block that is being written.
void BlockTable::arrived(std::int64_t first, std::span<const std::uint64_t> checksums) {
  const auto count = static_cast<std::int64_t>(checksums.size());
  check_range(first, count);
  for (std::int64_t k = 0; k < count; ++k) {
    if (is_own(first + k, kWritten)) table_[first + k].checksum = checksums[static_cast<std::size_t>(k)];
  }
  end(numbers_of({first, count}), &BlockTable::end_writing);
}

std::vector<std::int64_t> BlockTable::take_over(std::span<const std::int64_t> blocks) {
  check(blocks);
  std::vector<std::int64_t> taken;
  const CacheRoom::Lock lock(*room_);
  end_late();
  std::uint64_t owners = 0;
  for (const std::int64_t number : blocks) {
    const std::uint32_t word = table_[number].state.load();
    if (state_of(word) == kArriving) owners |= std::uint64_t{1} << owner_of(word);
  }
  owners &= ~(std::uint64_t{1} << place_);
  for (std::int64_t number = 0; owners != 0 && number < blocks_; ++number) {
    const std::uint32_t word = table_[number].state.load();
    const bool pinned = pins_[static_cast<std::size_t>(number)].load() != 0;
    if (!pinned || state_of(word) != kArriving || (owners >> owner_of(word) & 1) == 0) continue;
    table_[number].state.store(word_of(kArriving, place_));
    taken.push_back(number);
  }
  return taken;
}

std::vector<BlockTable::Run> BlockTable::begin_writing(std::int64_t first, std::int64_t count) {
  check_range(first, count);
  std::vector<Run> runs;
  const CacheRoom::Lock lock(*room_);
  end_late();
  for (std::int64_t number = first; number < first + count; ++number) {
    if (state_of(table_[number].state.load()) != kArriving) continue;
    table_[number].state.store(word_of(kWritten, place_));
    if (runs.empty() || runs.back().first + runs.back().count != number) runs.push_back({number, 0});
    ++runs.back().count;
  }
  return runs;
}

std::uint64_t BlockTable::checksum(std::int64_t block) const {
  check({&block, 1});
  const CacheRoom::Lock lock(*room_);
  return table_[block].checksum;
}

bool BlockTable::vouch(std::int64_t block) {
  check({&block, 1});
  bool is_there = false;
  {
    const CacheRoom::Lock lock(*room_);
    is_there = state_of(table_[block].state.load()) == kPresent;
    if (is_there) table_[block].era = head_->era;
  }
  room_->announce();
  return is_there;
}

// Another process may have found the same, and may have it downloaded already.
void BlockTable::discard(std::int64_t block) {
  check({&block, 1});
  {
    const CacheRoom::Lock lock(*room_);
    if (state_of(table_[block].state.load()) == kPresent && table_[block].era != head_->era) {
      table_[block].state.store(word_of(kLeaving, place_));
      left_.push_back(block);
    }
  }
  room_->announce();
}

bool BlockTable::hold_all() {
  const CacheRoom::Lock lock(*room_);
  end_late();
  for (std::int64_t number = 0; number < blocks_; ++number) {
    const Block& block = table_[number];
    if (state_of(block.state.load()) != kPresent || block.era != head_->era) return false;
  }
  head_->whole.fetch_or(std::uint64_t{1} << place_);
  whole_.fetch_add(1);
  return true;
}

void BlockTable::end_whole(std::int64_t /*number*/) {
  if (whole_.load() != 0 && whole_.fetch_sub(1) == 1) head_->whole.fetch_and(~(std::uint64_t{1} << place_));
}

void BlockTable::let_go_all() { end(std::array<std::int64_t, 1>{0}, &BlockTable::end_whole); }

}  // namespace memload
