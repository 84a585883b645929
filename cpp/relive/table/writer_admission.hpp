// The limiters' admission of the rows of a block (protocol.md, section 0).
//
// Owner:   a ReservedRows belongs to one call of a writer. The rows that it reserves are counted in the participant's
//          credit, so a death gives them back (rule E4).
// Locking: the writer's mutex. Rows are reserved and committed under the table lock. A wait takes no lock.
// Cost:    O(indexes) for transitions; for sequences and groups O(rows x log rows) while a limiter does not admit all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relive/table/table.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

// Rows that the limiters have admitted and that are not committed yet. The destructor gives back the rest.
class ReservedRows final {
 public:
  explicit ReservedRows(Table& table) : table_(table) {}
  ~ReservedRows() {
    if (left_ <= 0) return;
    subtract(left_);
    notify(&table_.region().header->room_event);
  }
  ReservedRows(const ReservedRows&) = delete;
  ReservedRows& operator=(const ReservedRows&) = delete;

  // Under the table lock.
  void reserve(int64_t rows) {
    reserved().fetch_add(rows, std::memory_order_relaxed);
    left_ = rows;
  }
  // Under the table lock, after commit_run.
  void commit(int64_t rows) {
    if (left_ <= 0) return;
    subtract(rows);
    left_ -= rows;
  }

 private:
  std::atomic<int64_t>& reserved() { return table_.region().credit(table_.participant(), 0).reserved; }
  void subtract(int64_t rows) { reserved().fetch_sub(rows, std::memory_order_relaxed); }

  Table& table_;
  int64_t left_ = 0;
};

// Reserves as many of the rows after the first `stored` ones as the limiters of all indexes admit, and waits until that
// is at least one. *upto: where the admitted rows end; not changed if no index limits inserts.
// `lanes`: all lanes of the writer.
Status admit_rows(Table& table, LaneBlock block, const std::vector<WriterLane>& lanes, size_t stored,
                  const Deadline& deadline, ReservedRows* reserved, size_t* upto);

}  // namespace relive
