// Decides which rows start an item of an index of sequences (rules S1 to S3). A sequence starts at every period-th step
// of its episode; `at_end` says which sequences that run over the episode's end are items. The decision therefore needs
// the row that is `length` steps later, or the end of the episode. Windows that cross ends count the steps of the lane
// instead (crossing.hpp). The rows alone determine the decision, so the process that continues after a death decides
// the same.
//
// Owns:    nothing. A RowAhead lives on the stack of its caller.
// Locking: every function runs under the table lock; none allocates, sleeps or calls the system (rule C4).
// Cost:    O(1) and two heads of rows for each row, and for each page one walk over the pages that `length` spans.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

inline constexpr uint64_t kNoSlot = ~uint64_t{0};

// A cursor over the rows of a page and of the pages after it in the lane. The cursor moves forward only.
class RowAhead final {
 public:
  // coming_tail: slot of a row that is still a step and counts as the tail that it will become; kNoSlot: none.
  explicit RowAhead(const Region& region, uint64_t page, uint64_t coming_tail = kNoSlot)
      : r_(region), coming_tail_(coming_tail), page_(page) {}
  // Moves to the row `offset` rows after row 0 of the page of the constructor. The cursor never moves back. Returns
  // false if that row does not exist.
  bool go_to(uint64_t offset);
  // Properties of the current row.
  bool is_tail() const { return r_.is_tail(page_, row_) || r_.slot_of(page_, row_) == coming_tail_; }
  uint32_t head() const { return r_.head_of(r_.slot_of(page_, row_)).load(std::memory_order_relaxed); }

 private:
  const Region& r_;
  const uint64_t coming_tail_;
  uint64_t page_;       // kNoPage: past the last page
  uint64_t first_ = 0;  // offset of row 0 of page_
  uint32_t row_ = 0;
};

// The row `count` rows before a row of the same lane; kNoSlot if that row was evicted.
uint64_t row_before(const Region& r, uint64_t page, uint32_t offset, uint32_t count);

// Whether a step starts an item of an index of sequences. The caller asks for the steps of one page in ascending order,
// with one RowAhead for that page, and only for rows that num_decided() covers. is_cut: the lane ends with an
// unfinished episode.
bool begins_item(const Region& r, uint32_t index, uint64_t page, uint32_t offset, RowAhead& ahead, bool is_cut);

// The number of rows of a lane, from its first row on, that can be published or skipped; for transitions, the rows with
// a complete window. The lane has a page and num_rows rows. has_seam: the state cell after the last row is written,
// too.
int64_t num_decided(const Region& r, uint32_t index, uint32_t lane_slot, int64_t num_rows, bool has_seam);

// Whether an index knows at the commit of rows which of them start no item.
inline bool knows_what_begins_nothing(const Region& r, uint32_t index) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  return sequence.is_set() && sequence.at_end != AtEnd::kShift;
}

// Ends the items of rows [begin, end) of a page that start none. The end of the episode, which decides the other rows,
// then has less to do (rule S3).
void end_what_begins_nothing(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end);

}  // namespace relive
