#include "core/readers/tile_cache.h"

#include <utility>

namespace memload {

std::shared_ptr<const TileCache::Tile> TileCache::get(const TileGrid& grid, std::size_t number, std::size_t bytes,
                                                      const Decode& decode, bool& kept) {
  const Key key{grid.id(), number};
  const auto tile = std::make_shared<Tile>();
  std::list<Key> use{key};
  std::unique_lock lock(mutex_);
  for (auto found = tiles_.find(key); found != tiles_.end(); found = tiles_.find(key)) {
    const std::shared_ptr<Tile> there = found->second.tile;
    uses_.splice(uses_.begin(), uses_, found->second.use);
    changed_.wait(lock, [&] { return there->state_ != Tile::State::decoding; });
    if (there->state_ == Tile::State::ready) {
      kept = true;
      return there;
    }
  }
  kept = false;
  tile->size_ = bytes;
  make_room(bytes);
  tiles_.emplace(key, Place{tile, use.begin()});
  uses_.splice(uses_.begin(), use);  // last, as it cannot throw
  used_ += bytes;
  lock.unlock();
  fill(key, *tile, decode);
  return tile;
}

void TileCache::fill(const Key& key, Tile& tile, const Decode& decode) {
  bool decoded = false;
  const auto done = [&] {
    const std::lock_guard lock(mutex_);
    tile.state_ = decoded ? Tile::State::ready : Tile::State::failed;
    if (!decoded) {
      const auto found = tiles_.find(key);
      uses_.erase(found->second.use);
      tiles_.erase(found);
      used_ -= tile.size_;
    }
    changed_.notify_all();
  };
  try {
    tile.bytes_ = std::make_unique_for_overwrite<std::byte[]>(tile.size_);
    decode({tile.bytes_.get(), tile.size_});
    decoded = true;
  } catch (...) {
    done();
    throw;
  }
  done();
}

// Lets tiles go until there is room, as far as nobody reads them.
void TileCache::make_room(std::size_t bytes) {
  for (auto use = uses_.end(); use != uses_.begin() && used_ + bytes > capacity_;) {
    --use;
    const auto found = tiles_.find(*use);
    const std::shared_ptr<Tile>& tile = found->second.tile;
    if (tile->state_ != Tile::State::ready || tile.use_count() > 1) continue;
    used_ -= tile->size_;
    tiles_.erase(found);
    use = uses_.erase(use);
  }
}

}  // namespace memload
