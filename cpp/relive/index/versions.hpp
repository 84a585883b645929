// The version of an item: the lowest policy version of its rows (docs/samplers.md).
//
// Owner:   none. Locking: under the table lock, for an item whose rows are all there.
// Cost:    one mark for a transition, else one mark for each row of the item.
#pragma once

#include <cstdint>

#include "relive/words/region.hpp"

namespace relive {

// The version from which batch.staleness is counted. A transition has the version of its own row, every other item the
// lowest version of the rows of its steps. `leaf`: a slot, or a record.
uint32_t oldest_version(const Region& r, uint32_t index, uint64_t leaf);

}  // namespace relive
