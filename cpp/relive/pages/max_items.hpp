// Bounds of indexes of rows: an index with more than max_items items drops the items that its remover chooses (rule
// R2), and a sampler of the last n items takes the mass from older ones (rule Z4).
//
// Owns:    nothing.
// Locking: the functions run under the table lock, before it is released, so no other owner of the lock sees an item
//          too many. Samplers take no lock and may see the surplus of the present critical section: at most the items
//          that it published.
// Cost:    O(log8 slots) for each item that is dropped; nothing if no index has a bound.
#pragma once

#include "relive/words/held.hpp"

namespace relive {

void end_beyond_most(Held& held);
// For a sampler of the last n items: items that no longer belong to them lose their mass and stay items (rule Z4).
void leave_beyond_last(Held& held);

// Runs at the end of every critical section.
inline void keep_to_most(Held& held) {
  if (!held.region.bounded_indexes().empty()) end_beyond_most(held);
  if (!held.region.latest_indexes().empty()) leave_beyond_last(held);
}

}  // namespace relive
