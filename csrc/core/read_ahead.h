// Asking the disk for rows before they are gathered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/gather.h"
#include "core/plan_queue.h"
#include "core/residency.h"
#include "core/workers.h"

namespace memload {

// Which rows of the plan to ask for next, so that enough of them are under way to fill the disk's queue:
//
//   plan:   | taken: being gathered | asked for: a window of this size | not yet |
//
// Not synchronised: a pass calls it with its mutex held.
class ReadAhead {
 public:
  // So many bytes or rows are under way, whichever is less, but at least a batch.
  static constexpr std::size_t kBytes = std::size_t{32} << 20;
  static constexpr std::size_t kRows = 256;

  ReadAhead(const Gather& gather, std::size_t batch_rows);

  // What was asked for before does not count.
  void restart(const PlanQueue& plan) { asked_ = plan.taken(); }
  // The rows to ask for now: those of the window that were not given before. Rows that are not there are left out.
  [[nodiscard]] std::vector<std::int64_t> due(const PlanQueue& plan);

 private:
  const std::int64_t rows_;   // there are
  const std::size_t window_;  // rows
  std::size_t asked_ = 0;     // the position in the plan up to which rows were given
};

// The asking, by threads of the crew. For rows that are all there.
class Advice : public Job {
 public:
  // Told by any thread whether a row of a piece was in the page cache before it was asked for.
  using Sampled = std::function<void(bool resident)>;

  // blocks: the 2 MB around each row are read, and waited for.
  Advice(std::shared_ptr<Crew> crew, std::vector<std::int64_t> rows, std::shared_ptr<const Gather> gather,
         std::shared_ptr<const Residency> residency, bool blocks, Sampled sampled);

  void run(std::size_t piece) noexcept override;

 private:
  static std::size_t piece_rows(bool blocks) noexcept;

  std::vector<std::int64_t> rows_;
  std::shared_ptr<const Gather> gather_;
  std::shared_ptr<const Residency> residency_;
  bool blocks_;
  Sampled sampled_;
};

}  // namespace memload
