#include "core/readers/planned_reads.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <numeric>
#include <system_error>
#include <utility>

namespace memload {

// The reads that one thread has under way, each into a buffer of its own.
class PlannedReads::UnderWay {
 public:
  UnderWay(PlannedReads& reads, std::size_t room) : reads_(reads), room_(room) {}

  enum class Begun { yes, no, later };

  // Begins to read. No: the file cannot be read so. Later: there is no descriptor for it before another read has ended.
  Begun begin(const PlannedRun& run, std::size_t tag, OpenFiles::WhenFull when_full) {
    Read& read = under_way_[tag];
    read.file = run.storage->direct_file(when_full);
    if (read.file.fd() < 0) {
      const bool later = when_full == OpenFiles::WhenFull::none && run.storage->reads_directly();
      return later ? Begun::later : Begun::no;
    }
    const auto offset = static_cast<std::size_t>(run.src - run.storage->data());
    read.run = &run;
    read.skipped = offset % kPage;
    const std::size_t length = round_up(read.skipped + reads_.bytes_of(run), kPage);
    reads_.cold_.past->push_read(read.file.fd(), buffer(tag), offset - read.skipped, length, tag);
    return Begun::yes;
  }

  // A read has ended: copies what came, or takes the run to `left`.
  void end(std::size_t tag, std::int64_t got, std::vector<PlannedRun>& left) {
    Read& read = under_way_[tag];
    read.file = {};
    if (got == -EINVAL || got == -EOPNOTSUPP) read.run->storage->refuse_direct();
    if (got < static_cast<std::int64_t>(read.skipped + reads_.bytes_of(*read.run))) {
      left.push_back(*read.run);
    } else {
      read.run->storage->count_direct(reads_.bytes_of(*read.run));
      reads_.consume(*read.run, buffer(tag) + read.skipped);
    }
  }

 private:
  struct Read {
    const PlannedRun* run = nullptr;
    std::size_t skipped = 0;
    DirectFile::Handle file;
  };
  [[nodiscard]] std::byte* buffer(std::size_t tag) const { return reads_.cold_.memory.data() + tag * room_; }

  PlannedReads& reads_;
  std::size_t room_;
  std::array<Read, kMostUnderWay> under_way_;
};

void PlannedReads::copy(std::span<const PlannedRun> runs, std::vector<PlannedRun>& left) {
  std::vector<PlannedRun> wanted;
  wanted.reserve(runs.size());
  std::size_t longest = 0;
  for (const PlannedRun& run : runs) {
    if (copy_cached(run)) continue;
    wanted.push_back(run);
    longest = std::max(longest, bytes_of(run));
  }
  const std::size_t room = DirectFile::room_for(longest);
  const std::size_t most = std::min(
      {kMostUnderWay, std::max<std::size_t>(1, kBytesUnderWay / room), cold_.memory.size() / room, wanted.size()});
  if (most == 0) {
    left.insert(left.end(), wanted.begin(), wanted.end());
  } else if (most == 1 || cold_.past == nullptr) {
    read_one_by_one(wanted, left);
  } else {
    read_together(wanted, room, most, left);
  }
}

bool PlannedReads::copy_cached(const PlannedRun& run) {
  RowCache* const cache = run.storage->cache();
  if (cache == nullptr) return false;
  const RunKey key{run.storage->number(), static_cast<std::uint64_t>(run.src - run.storage->data())};
  const bool held = cache->find(key, bytes_of(run), [&](const std::byte* data) { move(data, run); });
  if (held) found_.cached_bytes += bytes_of(run);
  return held;
}

void PlannedReads::consume(const PlannedRun& run, const std::byte* read) {
  const std::size_t bytes = bytes_of(run);
  found_.direct_bytes += bytes;
  if (RowCache* const cache = run.storage->cache(); cache != nullptr) {
    cache->offer({run.storage->number(), static_cast<std::uint64_t>(run.src - run.storage->data())}, {read, bytes});
  }
  move(read, run);
}

void PlannedReads::read_one_by_one(std::span<const PlannedRun> runs, std::vector<PlannedRun>& left) {
  for (const PlannedRun& run : runs) {
    const std::byte* const read = run.storage->read_direct(run.src, bytes_of(run), cold_.memory);
    if (read == nullptr) {
      left.push_back(run);
    } else {
      consume(run, read);
    }
  }
}

void PlannedReads::read_together(std::span<const PlannedRun> runs, std::size_t room, std::size_t most,
                                 std::vector<PlannedRun>& left) {
  UnderWay under_way(*this, room);
  std::size_t next = 0;
  std::size_t reading = 0;
  const auto begin = [&](std::size_t tag) {
    for (; next < runs.size(); ++next) {
      const auto when_full = reading == 0 ? OpenFiles::WhenFull::one_more : OpenFiles::WhenFull::none;
      const auto begun = under_way.begin(runs[next], tag, when_full);
      if (begun == UnderWay::Begun::later) return false;  // tried again when a read has ended
      if (begun == UnderWay::Begun::no) {
        left.push_back(runs[next]);
        continue;
      }
      ++reading;
      ++next;
      return true;
    }
    return false;
  };
  left.reserve(left.size() + runs.size());  // nothing may throw while the kernel writes to our buffers
  std::array<std::size_t, kMostUnderWay> idle;
  std::size_t idle_tags = most;
  std::iota(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(most), std::size_t{0});
  const auto begin_all = [&] {
    while (idle_tags != 0 && begin(idle[idle_tags - 1])) --idle_tags;
  };
  begin_all();
  while (reading != 0) {
    if (const int error = cold_.past->submit_and_wait(); error != 0) {
      throw std::system_error(error, std::generic_category(), "io_uring_enter");  // of a ring that is none
    }
    cold_.past->reap([&](std::size_t tag, std::int64_t got) {
      --reading;
      under_way.end(tag, got, left);
      idle[idle_tags++] = tag;
    });
    begin_all();
  }
}

}  // namespace memload
