// Files that processes share as memory, and locks of the kernel's on their bytes.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "core/base/error.h"

namespace memload {

// A lock of the kernel's on some bytes, which belongs to the open file: F_RDLCK, F_WRLCK or F_UNLCK.
inline int lock_bytes(int file, int command, short kind, off_t at, off_t count = 1) {
  struct flock lock{};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = at;
  lock.l_len = count;
  int done = 0;
  do {
    done = ::fcntl(file, command, &lock);
  } while (done != 0 && errno == EINTR);
  if (command == F_OFD_GETLK) return done == 0 && lock.l_type == F_UNLCK ? 0 : -1;
  return done;
}

inline int memory_file(const char* name) {
  const int file = ::memfd_create(name, MFD_CLOEXEC);
  if (file < 0) throw_errno("the table of cached blocks: no memory for it");
  return file;
}

inline int open_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) throw_errno(path + ": cannot open");
  return file;
}

// Whether an open file still lies at a path: somebody may have removed it, and another process made it anew.
inline bool lies_at(int file, const std::string& path) {
  struct stat own{}, found{};
  return ::fstat(file, &own) == 0 && ::stat(path.c_str(), &found) == 0 && own.st_dev == found.st_dev &&
         own.st_ino == found.st_ino;
}

// Whether somebody has removed an open file, which nobody else can open then.
inline bool is_removed(int file) {
  struct stat info{};
  return ::fstat(file, &info) == 0 && info.st_nlink == 0;
}

inline void* map_file(int file, std::size_t bytes, const std::string& path) {
  struct stat info{};
  if (::fstat(file, &info) != 0) throw_errno(path + ": cannot stat");
  if (info.st_size != 0 && static_cast<std::size_t>(info.st_size) < bytes) {
    throw std::runtime_error(path +
                             ": not a file of a cache of memload's, or damaged; give another folder, or remove it");
  }
  if (info.st_size == 0 && ::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    throw_errno(path + ": cannot grow");
  }
  // Without disk space of its own, a page that is written to later would end the process when the disk is full.
  if (!path.empty()) {
    do {
      errno = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
    } while (errno == EINTR);
    if (errno != 0) throw_errno(path + ": no disk space for it");
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw_errno(path + ": cannot map");
  return memory;
}

}  // namespace memload
