// The version of an item: the lowest policy version of its rows (docs/samplers.md).
//
// Owner:   none. Locking: under the table lock, for an item whose rows are all there.
// Cost:    one mark for a transition, else one mark for each row of the item.
#pragma once

#include <cstdint>

#include "relive/words/region.hpp"

namespace relive {

// The version from which batch.staleness is counted: of a transition that of its own row, of other items the lowest of
// all rows that have one of their steps. `leaf`: a slot, or a record.
uint32_t oldest_version(const Region& r, uint32_t index, uint64_t leaf);

}  // namespace relive
