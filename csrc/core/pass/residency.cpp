#include "core/pass/residency.h"

#include <algorithm>
#include <utility>

namespace memload {

Residency::Residency(std::shared_ptr<const Gather> gather, const ResidencyOptions& options)
    : gather_(std::move(gather)),
      options_(options),
      direct_(options.direct && !options.blocks && gather_->files().large_rows) {}

int Residency::most_threads() const noexcept { return std::max(options_.threads, kDirectReads); }

bool Residency::look(std::span<const std::int64_t> rows) {
  if (std::exchange(looked_, true) || !gather_->files().mapped) return false;
  const std::size_t step = std::max<std::size_t>(1, rows.size() / 8);
  for (std::size_t i = 0; i < rows.size() && !cold_; i += step) {
    if (gather_->resident(rows[i])) continue;
    turn_cold();
    return true;
  }
  return false;
}

bool Residency::filled(const Filled& found, bool missed_page_cache) {
  if (!cold_) {
    if (found.in_cache && !missed_page_cache) return false;
    turn_cold();
    return true;
  }
  if (!direct_) return false;
  count(found.direct_bytes > 0 || found.refused, found.resident_reads);
  if (!found.refused) return false;
  direct_ = false;  // the file system cannot, or a file was replaced: from here on through the page cache
  turn_cold();
  return true;
}

void Residency::count(bool missing, std::size_t resident) {
  warm_samples_ = missing ? 0 : warm_samples_ + resident;
  if (warm_samples_ >= kWarmSamples) cold_ = false;
}

void Residency::turn_cold() {
  cold_ = true;
  warm_samples_ = 0;
  gather_->expect_random_reads(options_.blocks);
}

}  // namespace memload
