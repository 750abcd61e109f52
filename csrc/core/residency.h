// Whether a pass finds its rows in the page cache, and how it reads where it does not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/gather.h"

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
// Not synchronised: a pass calls it with its mutex held. But cold(), direct() and past_cache() may be asked on any
// thread: an old answer costs time only.
class Residency {
 public:
  // So many rows in a row found in the page cache end the asking, and the direct reading.
  static constexpr std::size_t kWarmSamples = 64;
  // Reads past the page cache that are under way at once, each with a thread that waits for it. A disk reaches its rate
  // with 2 to 4 of 512 KB to 1 MB; the others are being copied meanwhile, or wait for a CPU that does other work as
  // well. Of 4, 6, 8 and 12, 8 measured best: with 4 the disk idles at times, with 12 it fell to 0.6 of its rate in
  // some runs.
  static constexpr int kDirectReads = 8;

  Residency(std::shared_ptr<const Gather> gather, const ResidencyOptions& options);

  [[nodiscard]] bool cold() const noexcept { return cold_; }
  // Whether large rows are read past the page cache now.
  [[nodiscard]] bool direct() const noexcept { return cold_ && direct_; }
  // Whether there are files that are always read past it.
  [[nodiscard]] bool past_cache() const noexcept { return gather_->files().past_cache; }
  // Whether many threads wait for reads.
  [[nodiscard]] bool reads_planned() const noexcept { return direct() || past_cache(); }
  // How many threads may work for the pass as it reads now, and at most.
  [[nodiscard]] int threads() const noexcept { return reads_planned() ? most_threads() : options_.threads; }
  [[nodiscard]] int most_threads() const noexcept;

  // These tell what was seen; true: rows have to be asked for from here on, those under way included.
  // Looks at some of the first batch's rows; later calls do nothing.
  [[nodiscard]] bool look(std::span<const std::int64_t> rows);
  // Of a piece that was filled.
  [[nodiscard]] bool filled(const Filled& found, long major_faults);
  // Of a row that was about to be asked for.
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
