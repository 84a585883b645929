// Removes the rows of an abandoned episode, in critical sections that the caller bounds (rules V1 to V4). First the
// items of the episode end; readers of these items check again and discard them. Then its rows become tails, and no
// window, explicit item or late column uses a tail. The lane slot continues with a new lane.
//
// Owns:    nothing; the writer that abandons the episode keeps the WalkBack between two critical sections.
// Locking: every function runs under the table lock; none allocates, sleeps or calls the system (rule C4).
// Cost:    O(rows x indexes); remove_in_front O(rows that windows reach over the end of an episode).
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Ends the items of rows [begin, end) of a page as removed ones, in every index of rows.
void remove_items(Held& held, uint64_t page, uint32_t begin, uint32_t end);

// Gives the page a new word. A reader that has copied an item of the page discards its copy (rule G4); no reader finds
// such an item afterwards.
void renew_word(Held& held, uint64_t page);

// A walk backwards over the rows before an episode; it begins before the episode's first row.
struct WalkBack {
  uint64_t ref = 0;   // current page; 0: the walk is over
  uint32_t row = 0;   // the next row to visit is row - 1
  uint32_t uid = 0;   // low half of the lane's uid
  uint64_t rows = 0;  // visited so far, tails included
  uint64_t steps = 0;
};

// Whether items that begin before an episode may use rows of that episode. Two cases: windows that cross ends of
// episodes; explicit items in a table without state columns, where no tail ends a window with its episode.
bool is_reached_over_ends(const Region& r);

// Ends the items that run into the episode from the next `count` rows of the walk: items of rows before the rows of the
// episode become tails, explicit items afterwards (`are_tails`). Returns true if the walk is over.
bool remove_in_front(Held& held, WalkBack* walk, uint32_t count, bool are_tails);

// Turns steps [begin, end) of a page into tails. Their items of rows have ended. The explicit items on these rows end
// here, as many as one critical section may end (rule X7). Returns the first row that is still a step.
uint32_t rows_become_tails(Held& held, uint64_t page, uint32_t begin, uint32_t end);

}  // namespace relive
