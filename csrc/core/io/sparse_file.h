// Parts of sparse files: written into, and given back to the file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace memload {

// Writes bytes at an offset of a file. With `reserve` their space is asked for first, as one piece where the file
// system can do so: ext4 otherwise books each page of a hole by itself, which takes several times as long as the copy
// of its bytes, and a full disk is an error before anything is written. Throws std::system_error.
void write_part(int file, std::uint64_t offset, std::span<const std::byte> bytes, bool reserve);

// Gives the pages of a part, which begins with a page, back to the file system; they read as zeros from then on. Throws
// std::system_error.
void give_back(int file, std::uint64_t offset, std::uint64_t bytes);

}  // namespace memload
