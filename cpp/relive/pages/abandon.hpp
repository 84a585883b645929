// An episode that was given up: what comes of its rows, in holds that somebody else bounds (rules V1 to V4).
//
// Its items end first, and whoever reads one of them meanwhile looks again; then its rows become tails, which are no
// steps: no window, no explicit item and no late column is ever had of them. A lane of its own goes on behind them.
//
// Locking: everything here runs under the table lock. Nothing here allocates, sleeps or calls the system (rule C4).
// Cost:    O(rows x indexes); remove_in_front O(rows that windows reach over an episode's end).
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// Items of rows [begin, end) of a page end, as removed ones, in every index of rows.
void remove_items(Held& held, uint64_t page, uint32_t begin, uint32_t end);

// Whoever read an item of the page before that looks again (rule G4), and behind it nobody finds one.
void renew_word(Held& held, uint64_t page);

// A walk back over the rows in front of an episode, from its first one on.
struct WalkBack {
  uint64_t ref = 0;   // of the page that it is at; 0: it is over
  uint32_t row = 0;   // the one behind the next
  uint32_t uid = 0;   // low half, of the lane
  uint64_t rows = 0;  // that it has passed
  uint64_t steps = 0;
};

// Whether items that begin in front of an episode may have rows of it: where windows cross ends; explicit ones where no
// state column lets a window end with its episode.
bool is_reached_over_ends(const Region& r);

// Those of the next `count` rows end, items of rows first, explicit ones once the rows are tails (`are_tails`). True:
// there are no more.
bool remove_in_front(Held& held, WalkBack* walk, uint32_t count, bool are_tails);

// Steps [begin, end) of a page, whose items have ended, become tails; explicit items at them end first, as many as a
// hold may. Returns the first row that is left.
uint32_t rows_become_tails(Held& held, uint64_t page, uint32_t begin, uint32_t end);

}  // namespace relive
