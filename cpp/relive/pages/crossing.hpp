// Counts the steps of a lane over ends of episodes, for windows that cross ends (at_end cross; rules S1, S2, S4) and
// for telling episodes apart (rule S6). A page's record has first_step, the number of steps before its row 0, and the
// page's tails tell which rows are steps, so the page alone determines the number for each of its rows. If several
// lanes of one slot share a page, the marks tell the lane of each row, and the count of a later lane starts at its
// first row.
//
// Owns:    nothing.
// Locking: every function runs under the table lock; none allocates, sleeps or calls the system (rule C4).
// Cost:    O(page length / 64) a question; one binary search more in a page that several lanes share.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Whether windows of any index cross ends of episodes. Such windows also reach back over the start of an episode.
bool crosses_ends(const Region& r);

// Whether lanes count their steps: for windows that cross ends, and for episodes of which one random window is an item.
bool counts_steps(const Region& r);

// The number of steps that the lane of this uid had before row `offset` of a page. The page has rows of the lane, or
// lies after all of them.
uint64_t steps_before(const Region& r, uint64_t page, uint32_t offset, uint64_t uid);

// The same number for a row that is a step, and the lane that wrote the row.
uint64_t lane_step(const Region& r, uint64_t page, uint32_t offset);

// num_decided() for such an index: the row of the first incomplete item, counted from the lane's first row.
int64_t num_decided_across(const Region& r, uint32_t index, uint32_t lane_slot, bool has_seam);

// Whether all rows of an item that exist have their late columns.
bool has_late_columns_across(const Region& r, uint32_t index, uint64_t page, uint32_t offset);

}  // namespace relive
