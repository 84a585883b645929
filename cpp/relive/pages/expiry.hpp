// Drops items that expire. max_wait_s: an item that waits longer for late columns, a priority or members (rule T2).
// max_staleness: an item whose oldest row has a version too far before the learner's (rule Z2).
//
// Owns:    nothing.
// Locking: the functions with a Held run under the table lock, before it is released. While no process takes the lock,
//          overdue items stay in the table; a waiting item cannot be drawn, so no reader sees that.
// Cost:    one read of the clock if any item waits; O(log8 leaves) for each item that is dropped; nothing without such
//          an index.
#pragma once

#include "relive/words/held.hpp"

namespace relive {

// Returns true if an item was dropped, which makes room to insert.
bool drop_overdue(Held& held);

// Runs at the end of every critical section.
inline bool keep_to_time(Held& held) {
  return !(held.region.timed_indexes().empty() && held.region.aged_indexes().empty()) && drop_overdue(held);
}

// Whether items with an expired version are left, because one critical section drops a bounded number. May be called
// without the lock.
bool has_expired(const Region& r);

// Moves the base of fading masses if the learner's version was set far back (rule Z3). Runs at the end of every
// critical section.
void keep_masses_near(Held& held);

// The time, by clock_s(), at which the next waiting item expires; infinity if no item waits. May be called without the
// lock; the answer is exact under the lock.
double next_due_s(const Region& r);

}  // namespace relive
