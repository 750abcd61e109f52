// A queue of planned row indices, from which batches are cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace memload {

// Row indices in memory that `owner` keeps alive, or, without one, the caller.
struct Rows {
  std::shared_ptr<const void> owner;
  std::span<const std::int64_t> indices;
};

// A stream of rows from which batches are cut, or a queue of ready-made batches. It is not synchronised.
class PlanQueue {
 public:
  PlanQueue(std::size_t batch_rows, bool drop_last) : batch_rows_(batch_rows), drop_last_(drop_last) {}

  void extend(Rows rows) {
    const std::size_t more = rows.indices.size();
    if (more != 0) chunks_.push_back({std::move(rows), false});
    left_ += more;
  }
  void push(Rows rows) {
    const std::size_t more = rows.indices.size();
    chunks_.push_back({std::move(rows), true});
    left_ += more;
  }
  void finish() { finished_ = true; }
  // Puts a batch that was taken back to the front.
  void put_back(Rows rows) {
    const std::size_t more = rows.indices.size();
    chunks_.push_front({std::move(rows), true});
    left_ += more;
    taken_ -= more;
  }

  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] std::size_t taken() const { return taken_; }
  // Whether take() gives a batch now.
  [[nodiscard]] bool ready() const { return next_rows() != 0 || (!chunks_.empty() && chunks_.front().whole); }
  // Whether there is no batch now and none will come.
  [[nodiscard]] bool ended() const { return finished_ && !ready(); }

  // Number of rows that take() gives.
  [[nodiscard]] std::size_t next_rows() const {
    if (chunks_.empty()) return 0;
    if (const Chunk& front = chunks_.front(); front.whole) return front.rows.indices.size() - front.used;
    if (left_ >= batch_rows_) return batch_rows_;
    return finished_ && !drop_last_ ? left_ : 0;
  }

  // Takes the rows of the next batch. The call is allowed only if ready().
  std::vector<std::int64_t> take() {
    std::size_t wanted = next_rows();
    std::vector<std::int64_t> rows;
    rows.reserve(wanted);
    do {
      Chunk& chunk = chunks_.front();
      const auto rest = chunk.rows.indices.subspan(chunk.used);
      const auto part = rest.first(std::min(wanted, rest.size()));
      rows.insert(rows.end(), part.begin(), part.end());
      chunk.used += part.size();
      wanted -= part.size();
      if (chunk.used == chunk.rows.indices.size()) chunks_.pop_front();
    } while (wanted > 0);
    left_ -= rows.size();
    taken_ += rows.size();
    return rows;
  }

  // Gives up to `n` rows from the position `from` on, counted as taken() counts; fewer at the end of the plan.
  [[nodiscard]] std::vector<std::int64_t> peek(std::size_t from, std::size_t n) const {
    std::vector<std::int64_t> rows;
    std::size_t position = taken_;
    for (const Chunk& chunk : chunks_) {
      const auto rest = chunk.rows.indices.subspan(chunk.used);
      const std::size_t skip = from > position ? std::min(from - position, rest.size()) : 0;
      const auto part = rest.subspan(skip, std::min(n - rows.size(), rest.size() - skip));
      rows.insert(rows.end(), part.begin(), part.end());
      if (rows.size() == n) break;
      position += rest.size();
    }
    return rows;
  }

 private:
  struct Chunk {
    Rows rows;
    bool whole;  // one batch by itself
    std::size_t used = 0;
  };

  std::size_t batch_rows_;
  bool drop_last_;
  std::deque<Chunk> chunks_;
  std::size_t left_ = 0;
  std::size_t taken_ = 0;
  bool finished_ = false;
};

}  // namespace memload
