// Steps of a lane counted over ends of episodes, for items that cross them (at_end cross; rules S1, S2 and S4), and to
// tell episodes apart (S6).
//
// A page's record says how many steps its lane had before row 0 (first_step), the tails of the page say which of its rows
// are steps: so how many steps a lane had before any row follows from what is in the page alone. Where lanes of one slot
// share a page, the marks of its rows say which lane each is of, and a lane's count begins at its own first row.
//
// Locking: under the table lock. Nothing here allocates, sleeps or calls the system (rule C4).
// Cost:    O(page length / 64) a question, a binary search more in a page that several lanes share.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Whether windows of some index run over ends of episodes: what stands before an episode is then reached back over, too.
bool crosses_ends(const Region& r);

// Whether steps of lanes are counted: for windows that cross ends, and for episodes of which one window is drawn.
bool counts_steps(const Region& r);

// How many steps the lane of this uid had before row `offset` of a page, which is of it or stands behind all its rows.
uint64_t steps_before(const Region& r, uint64_t page, uint32_t offset, uint64_t uid);

// The same of a row that is a step, for the lane that wrote it.
uint64_t lane_step(const Region& r, uint64_t page, uint32_t offset);

// num_decided() of such an index: the row of the first item that is not complete, counted from the lane's first row.
int64_t num_decided_across(const Region& r, uint32_t index, uint32_t lane_slot, bool has_seam);

// Whether the late columns of all rows of an item have come, as far as its lane has rows.
bool has_late_columns_across(const Region& r, uint32_t index, uint64_t page, uint32_t offset);

}  // namespace relive
