// max_wait_s: items that wait longer to be published are dropped, and counted (rules T1 to T3).
//
// What waits is let in and whole, and lacks late columns or its priority; or it is a group that lacks members. Since when,
// the tree of times says (index/leaves.hpp), whose best is the next to go.
//
// Locking: under the table lock, as soon as it is taken: whoever has it finds those gone whose time is over.
// Cost:    O(log8 leaves) for each item that goes, at most 256 of an index a hold (rule C3); where nothing is due a look
//          at eight words of each timed index; nothing where no index is timed.
#pragma once

#include "relive/words/held.hpp"

namespace relive {

// True where some item went: what it took of a limiter's room has come back.
bool drop_items_due(Held& held);
inline bool drop_overdue(Held& held) { return !held.region.timed_indexes().empty() && drop_items_due(held); }

// When the next item is to go, by clock_s(); +inf where none waits. At any time; exact under the lock.
double next_due_s(const Region& r);

// For the first to attach after all others left: times that its clock has not come to begin anew. all: so do the others,
// since the machine was started anew.
void mend_times(Held& held, bool all);

}  // namespace relive
