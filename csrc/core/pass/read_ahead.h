// Read-ahead: asks the disk for rows before they are gathered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/gather/gather.h"
#include "core/pass/plan_queue.h"
#include "core/pass/residency.h"
#include "core/pass/workers.h"

namespace memload {

// Chooses the rows of the plan to ask for next, so that enough reads are under way to fill the disk's queue:
//
//   plan:   | taken: being gathered | asked for: a window of this size | not yet |
//
// It is not synchronised: a pass calls it with its mutex held.
class ReadAhead {
 public:
  // So many bytes or rows are under way, whichever is less, but at least a batch.
  static constexpr std::size_t kBytes = std::size_t{32} << 20;
  static constexpr std::size_t kRows = 256;

  ReadAhead(const Gather& gather, std::size_t batch_rows);

  // Forgets which rows were asked for.
  void restart(const PlanQueue& plan) { asked_ = plan.taken(); }
  // Gives the rows to ask for now: those of the window that were not given before. Row numbers outside of the data set
  // are left out.
  [[nodiscard]] std::vector<std::int64_t> due(const PlanQueue& plan);

 private:
  const std::int64_t rows_;   // there are
  const std::size_t window_;  // rows
  std::size_t asked_ = 0;     // the position in the plan up to which rows were given
};

// The task that asks for rows. All of them exist.
class AdviceTask : public Task {
 public:
  // Each piece calls it, on any thread: whether a row of the piece was in the page cache before it was asked for (unset
  // if that cannot be known), and how many bytes were read from the disk.
  using Advised = std::function<void(std::optional<bool> resident, std::uint64_t read)>;

  // blocks: the task reads the 2 MB around each row, and waits for them.
  AdviceTask(std::shared_ptr<TaskGroup> group, std::vector<std::int64_t> rows, std::shared_ptr<const Gather> gather,
             std::shared_ptr<const Residency> residency, bool blocks, Advised advised);

  void run(std::size_t piece) noexcept override;

 private:
  static std::size_t piece_rows(bool blocks) noexcept;

  std::vector<std::int64_t> rows_;
  std::shared_ptr<const Gather> gather_;
  std::shared_ptr<const Residency> residency_;
  bool blocks_;
  Advised advised_;
};

}  // namespace memload
