// Computes the priority of a group of episodes from a column of its members, when the group is published.
//
// Owns:    nothing.
// Locking: the function runs under the table lock. All rows of the group exist and have their late columns.
// Cost:    one read for each row of the group; for a column of kind episode, one for each member.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// The priority of a group. given: the priority that came with the record, NaN if none came. A given priority stays, and
// an index whose groups are not weighed gets `given` back, NaN included. Otherwise GroupConfig::weight selects a
// statistic of the members' values. The value of a member is its episode column, or the sum of its step column. The
// priority is never below 0, and is 0 if the statistic is not a number.
float group_priority(const Region& r, uint32_t index, uint64_t record, float given);

}  // namespace relive
