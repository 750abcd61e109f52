// Residency tracks whether a pass finds its rows in the page cache, and decides how it reads where it does not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/gather/gather.h"

namespace memload {

struct ResidencyOptions {
  int threads = 1;      // that may gather for the pass at once while they wait for no reads
  bool direct = false;  // cold rows above Gather::kLargeRow are read past the page cache, where the file system can
  bool blocks = false;  // cold rows are read with the 2 MB around them, and never past the page cache
};

//             a row, or part of one, is missing
//     warm ------------------------------------> cold    rows are asked for ahead, large ones read past the page cache
//          <------------------------------------
//              kWarmSamples in a row are there
//
// It is not synchronised: a pass calls it with its mutex held. Any thread may call cold(), direct() and past_cache(),
// since an old answer only costs time.
class Residency {
 public:
  // After so many consecutive rows in the page cache, rows are no longer asked for or read directly.
  static constexpr std::size_t kWarmSamples = 64;
  // Number of reads past the page cache that are under way at once, each with a thread that waits for it. A disk
  // reaches its rate with 2 to 4 reads of 512 KB to 1 MB; the others are being copied meanwhile, or wait for a CPU that
  // does other work as well. Of 4, 6, 8 and 12, 8 measured best: with 4 the disk idled at times, with 12 it fell to 0.6
  // of its rate in some runs.
  static constexpr int kDirectReads = 8;

  Residency(std::shared_ptr<const Gather> gather, const ResidencyOptions& options);

  [[nodiscard]] bool cold() const noexcept { return cold_; }
  // Whether large rows are read past the page cache now.
  [[nodiscard]] bool direct() const noexcept { return cold_ && direct_; }
  // Whether some files are always read past the page cache.
  [[nodiscard]] bool past_cache() const noexcept { return gather_->files().past_cache; }
  // Whether many threads wait for reads.
  [[nodiscard]] bool reads_planned() const noexcept { return direct() || past_cache(); }
  // Number of threads that may work for the pass as it reads now, and at most.
  [[nodiscard]] int threads() const noexcept { return reads_planned() ? most_threads() : options_.threads; }
  [[nodiscard]] int most_threads() const noexcept;

  // The next ones report what was seen. They return true if rows have to be asked for from here on, including those
  // that are being gathered. Looks at some rows of the first batch; later calls do nothing.
  [[nodiscard]] bool look(std::span<const std::int64_t> rows);
  // Takes the report of a piece that was filled.
  [[nodiscard]] bool filled(const Filled& found, bool missed_page_cache);
  // Takes the report of a row that was about to be asked for.
  void sampled(bool resident) { count(!resident, resident ? 1 : 0); }

 private:
  void turn_cold();
  void count(bool missing, std::size_t resident);

  const std::shared_ptr<const Gather> gather_;
  const ResidencyOptions options_;
  std::atomic<bool> cold_{false};
  std::atomic<bool> direct_;  // while cold_; never again once a file has refused
  bool looked_ = false;
  std::size_t warm_samples_ = 0;
};

}  // namespace memload
