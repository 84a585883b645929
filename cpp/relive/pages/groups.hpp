// Groups of episodes: items that come of episodes as they end (rules Y1 to Y5).
//
// A group is an explicit item whose record is in use from its first member on: the members' windows are filled in one by
// one, and with the last of them it is let in. Until then its leaf is pending, so nobody draws it; it hangs at the rows of
// its members as any record does, and goes with the first row of them that goes. Which value it is of stands where other
// records have their own columns.
//
// Locking: under the table lock. Nothing here allocates, sleeps or calls the system (rule C4).
// Cost:    an episode that ends looks at the state of each record of the index (at most 4,096), and at its own pages.
//          Nothing where no index has groups.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// The episode with which the rows of a lane end becomes a member of its group, in each index of groups, if it has ended
// and has not been looked at yet: whoever asks again changes nothing.
void join_groups(Held& held, uint32_t lane_slot);

// The same episode, which has not ended, becomes no member: its lane is about to be cut, which looks like an end.
void pass_by_groups(Held& held, uint32_t lane_slot);

// After a death under the lock, behind recover_records(): a group that has all its members is let in.
void recover_groups(Held& held);

// The first thing about the groups of an index, or about the last episode of a lane, that does not hold; null if all
// does. The records have been found sound.
const char* broken_groups(const Region& r, uint32_t index);
const char* broken_join(const Region& r, uint32_t lane_slot);

}  // namespace relive
