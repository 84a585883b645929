// max_wait_s of an index: what waits longer to be published, for late columns, a priority or members, is dropped (T2).
// max_staleness: so is an item whose oldest row's version lies further behind the learner's (Z2).
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
inline bool keep_to_time(Held& held) {
  return !(held.region.timed_indexes().empty() && held.region.aged_indexes().empty()) && drop_overdue(held);
}

// Whether items stand whose versions are older than max_staleness lets them be: more than one hold drops. At any time.
bool has_expired(const Region& r);

// Masses that fade are told anew where the learner's version was set back (rule Z3). What a hold ends with.
void keep_masses_near(Held& held);

// When the next of what waits is to go, by clock_s(); infinity where nothing waits. At any time; exact under the lock.
double next_due_s(const Region& r);

}  // namespace relive
