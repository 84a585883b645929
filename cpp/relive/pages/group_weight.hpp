// The priority that a group of episodes has by what its members got, as it is published.
//
// Locking: under the table lock. The rows of the group are there, and their late columns are filled.
// Cost:    a look at each row of the group, or at one of each member where the column is of kind episode.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// given: the priority that came with the record, NaN where none did; that one stays. NaN, too, of an index whose groups
// are not weighed. Else what GroupConfig::weight says of the members' values: of an episode column its value, of a step
// column the sum over the member's rows. Never below 0; 0 where it is no number.
float group_priority(const Region& r, uint32_t index, uint64_t record, float given);

}  // namespace relive
