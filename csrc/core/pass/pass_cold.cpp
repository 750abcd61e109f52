// The part of a pass that serves rows which are not in the page cache.
#include <memory>
#include <utility>

#include "core/pass/pass.h"

namespace memload {

// Rows have turned out to be cold: those under way are asked for, those of a batch that has been taken from the plan
// and not begun, and those that the plan has next.
void Pass::ask_for_all(std::vector<std::int64_t> next_rows) {
  follow_residency();
  std::vector<std::int64_t> rows = in_flight_.rows_under_way();
  rows.insert(rows.end(), next_rows.begin(), next_rows.end());
  ask_for(std::move(rows));
  read_ahead_->restart(plan_);
  ask_for(read_ahead_->due(plan_));
}

void Pass::ask_for(std::vector<std::int64_t> rows) {
  if (rows.empty() || !workers_ || (residency_->direct() && !gather_->files().small_rows)) return;
  stats_.advised_rows += rows.size();
  auto sampled = [pass = shared_from_this()](std::optional<bool> resident, std::uint64_t read) {
    pass->advised(resident, read);
  };
  auto advice = std::make_shared<AdviceTask>(group_, std::move(rows), gather_, residency_, options_.read_blocks,
                                             std::move(sampled));
  workers_->submit({std::move(advice)}, /*urgent=*/true);
}

// More threads may work for the pass while they wait for reads.
void Pass::follow_residency() {
  const int threads = residency_->threads();
  if (workers_ && threads != std::exchange(group_threads_, threads)) workers_->set_limit(*group_, threads);
}

void Pass::advised(std::optional<bool> resident, std::uint64_t read) {
  const std::lock_guard lock(mutex_);
  stats_.disk_bytes += read;
  if (closed_ || !resident) return;
  residency_->sampled(*resident);
  follow_residency();
}

}  // namespace memload
