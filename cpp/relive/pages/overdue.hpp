// max_wait_s of an index: what waits longer to be published, for late columns, a priority or members, is dropped (T2).
//
// Locking: under the table lock, before it is given back. Nobody asks for it but who takes the lock: while nobody does,
//          what is overdue stays, and nobody can see it, for it cannot be drawn.
// Cost:    a look at the clock where anything waits, O(log8 leaves) for each item that goes; nothing where no index is
//          timed.
#pragma once

#include "relive/words/held.hpp"

namespace relive {

// True where any was dropped: there is room to insert.
bool drop_overdue(Held& held);

// What a hold ends with.
inline bool keep_to_time(Held& held) { return !held.region.timed_indexes().empty() && drop_overdue(held); }

// When the next of what waits is to go, by clock_s(); infinity where nothing waits. At any time; exact under the lock.
double next_due_s(const Region& r);

}  // namespace relive
