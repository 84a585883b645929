// Which rows begin an item, where items are sequences (rules S1 to S3).
//
// A sequence begins at every period-th step of its episode, and what the episode's end makes of those that run over it
// is its index's `at_end`. So whether a row begins an item is known when the row `length` behind it is there, or the
// episode has ended. Where windows cross ends, the steps of a lane are counted instead (crossing.hpp). All of it follows
// from the rows: whoever goes on after a death decides the same.
//
// Locking: under the table lock. Nothing here allocates, sleeps or calls the system (rule C4).
// Cost:    O(1) a row and two heads of rows read, plus a walk over the pages that `length` spans once a page.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

inline constexpr uint64_t kNoSlot = ~uint64_t{0};

// A row behind a page of a lane, found page by page, forward only.
class RowAhead final {
 public:
  // coming_tail: the slot of a row that is still a step and is taken for the tail that it will be, kNoSlot: none.
  explicit RowAhead(const Region& region, uint64_t page, uint64_t coming_tail = kNoSlot)
      : r_(region), coming_tail_(coming_tail), page_(page) {}
  // Goes to the row `offset` rows behind row 0 of the page it was made for, never back. False where it is not there.
  bool go_to(uint64_t offset);
  // Of the row it is at.
  bool is_tail() const { return r_.is_tail(page_, row_) || r_.slot_of(page_, row_) == coming_tail_; }
  uint32_t head() const { return r_.head_of(r_.slot_of(page_, row_)).load(std::memory_order_relaxed); }

 private:
  const Region& r_;
  const uint64_t coming_tail_;
  uint64_t page_;       // kNoPage: behind what is there
  uint64_t first_ = 0;  // the offset of its row 0
  uint32_t row_ = 0;
};

// The row so many rows before one of the same lane, kNoSlot where it is gone.
uint64_t row_before(const Region& r, uint64_t page, uint32_t offset, uint32_t count);

// Whether a step begins an item of an index of sequences. Asked for steps of one page in order, with one RowAhead made
// for that page; when the row may be decided (num_decided). is_cut: the lane ends with its last episode unfinished.
bool begins_item(const Region& r, uint32_t index, uint64_t page, uint32_t offset, RowAhead& ahead, bool is_cut);

// How many rows of a lane, counted from its first, can be published or passed over: of transitions those whose windows
// are complete. The lane has a page and num_rows rows; has_seam: the state cell behind the last of them is there, too.
int64_t num_decided(const Region& r, uint32_t index, uint32_t lane_slot, int64_t num_rows, bool has_seam);

// Whether it is known of rows that have just become steps which of them begin no item of the index.
inline bool knows_what_begins_nothing(const Region& r, uint32_t index) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  return sequence.is_set() && sequence.at_end != AtEnd::kShift;
}

// Those of rows [begin, end) of a page end at once, so that the end of an episode, which decides the others, is short.
void end_what_begins_nothing(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end);

}  // namespace relive
