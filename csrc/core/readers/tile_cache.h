// Decoded tiles that a pass keeps, so that batches which want rows of the same tiles decode each of them once. The
// pipelines of a pass over several datasets share one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "core/columns/tile_grid.h"

namespace memload {

// Any number of threads may use it at once. A tile that one thread decodes is waited for by the others that want it.
// When it is full, the tile that was used least recently goes, unless a thread still reads it.
class TileCache {
 public:
  // A decoded tile, which stays as it is for as long as this lives.
  class Tile {
   public:
    [[nodiscard]] const std::byte* data() const noexcept { return bytes_.get(); }

   private:
    friend class TileCache;
    enum class State : std::uint8_t { decoding, ready, failed };

    std::unique_ptr<std::byte[]> bytes_;
    std::size_t size_ = 0;
    State state_ = State::decoding;  // under the cache's mutex
  };

  using Decode = std::function<void(std::span<std::byte> out)>;

  // Bytes of decoded tiles. Tiles that are being read may exceed it for a moment.
  explicit TileCache(std::size_t capacity) noexcept : capacity_(capacity) {}
  TileCache(const TileCache&) = delete;
  TileCache& operator=(const TileCache&) = delete;

  // Gives a tile of `bytes` bytes, which `decode` fills if it is not kept; `kept` says whether it was. Throws what
  // `decode` throws, and std::bad_alloc; threads that waited for the tile then decode it themselves.
  [[nodiscard]] std::shared_ptr<const Tile> get(const TileGrid& grid, std::size_t number, std::size_t bytes,
                                                const Decode& decode, bool& kept);

 private:
  struct Key {
    std::uint64_t grid;  // its id: an address may come again after the grid has ended
    std::size_t number;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<std::uint64_t>()(key.grid ^ (key.number * 0x9E3779B97F4A7C15U));
    }
  };
  struct Place {
    std::shared_ptr<Tile> tile;
    std::list<Key>::iterator use;
  };

  void fill(const Key& key, Tile& tile, const Decode& decode);
  void make_room(std::size_t bytes);

  const std::size_t capacity_;
  std::mutex mutex_;  // guards all that follows, and the states of tiles
  std::condition_variable changed_;
  std::size_t used_ = 0;  // bytes
  std::list<Key> uses_;   // the latest first
  std::unordered_map<Key, Place, Hash> tiles_;
};

}  // namespace memload
