// max_items of an index of rows: one that holds more lets those go that its remover chooses (rule R2).
//
// Locking: under the table lock, before it is given back, so that nobody who takes it finds one item too many; samplers,
//          which take none, may meet those of the hold that goes on, at most as many as it published.
// Cost:    O(log8 slots) for each item that goes; nothing where no index is bounded.
#pragma once

#include "relive/words/held.hpp"

namespace relive {

void end_beyond_most(Held& held);
// Of a sampler of the items that came last: those that are no more of these lose their mass, and stay (rule Z4).
void leave_beyond_last(Held& held);

// What a hold ends with.
inline void keep_to_most(Held& held) {
  if (!held.region.bounded_indexes().empty()) end_beyond_most(held);
  if (!held.region.latest_indexes().empty()) leave_beyond_last(held);
}

}  // namespace relive
