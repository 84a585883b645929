// How old an item is, in versions of the policy: an item's version is the lowest of its rows' (docs/samplers.md).
//
// Locking: under the table lock, of an item that is whole: all its rows are there.
// Cost:    a look at the mark of each row that the item shows; of a transition at its own.
#pragma once

#include <cstdint>

#include "relive/words/region.hpp"

namespace relive {

// What batch.staleness is counted from: the version of a transition's own row, of other items the lowest of all rows that
// carry a step of them. `leaf`: a slot, or a record.
uint32_t oldest_version(const Region& r, uint32_t index, uint64_t leaf);

}  // namespace relive
