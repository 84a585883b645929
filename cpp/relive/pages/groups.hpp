// Groups of episodes: explicit items that are assembled while episodes end (rules Y1 to Y5). The record of a group is
// in use from its first member on. Each ended episode fills in one window; the last member publishes the group. Until
// then the group's leaf is pending, so no draw finds it. The record is linked to the rows of its members like any
// record, and ends when one of these rows goes. The group's value takes the place of the own columns of other records.
//
// Owns:    nothing.
// Locking: every function runs under the table lock; none allocates, sleeps or calls the system (rule C4).
// Cost:    an episode's end reads the state of each record of the index (at most 4,096) and the episode's own pages.
//          Nothing if no index has groups.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Adds the last episode of a lane to its group, in each index of groups, if the episode has ended and was not processed
// yet. A second call changes nothing.
void join_groups(Held& held, uint32_t lane_slot);

// Excludes the last episode of a lane, which has not ended, from its groups. Call this before a cut, because the rows
// of a cut lane look like an ended episode.
void pass_by_groups(Held& held, uint32_t lane_slot);

// After a death under the lock and after recover_records(): publishes each group that has all its members.
void recover_groups(Held& held);

// The first broken invariant of the groups of an index, or of the last episode of a lane; null if none is broken. The
// caller has checked the records.
const char* broken_groups(const Region& r, uint32_t index);
const char* broken_join(const Region& r, uint32_t lane_slot);

}  // namespace relive
