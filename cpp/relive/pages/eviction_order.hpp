// Which page goes where a table is full, if the remover of its first index chooses (rule D8): the one with the fewest
// items of that index that would go with it, the oldest of equal ones.
//
// A page's *weight* is how many items of the first index, live or still to be, end with its rows: its own, and those of
// its neighbours that reach into it. A tree of minima over the pages knows of each a number that its weight is not below,
// with its age under it; whoever chooses weighs the best and puts it back where it is heavier, until one is as light as
// it is said to be. So what a loss costs is a store and its ancestors, and nobody counts a page that is not about to go.
//
// Locking: everything here runs under the table lock. DERIVED: recovery makes the tree anew.
// Cost:    note_loss O(pages that a window touches x log8 pages), choose_page that and a window's rows for each page that
//          is weighed, at most 8192 of them; nothing where no remover chooses.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"
#include "relive/words/testing.hpp"

namespace relive {

// The page became CLOSED, or is that no more, or has no rows.
void rank_page(Held& held, uint64_t page);
// Items of the page ended, or are whole now: it, and what they reach into, may be lighter.
void rank_around(Held& held, uint64_t page);
// The page to go, CLOSED; kNoPage where there is none.
uint64_t choose_page(Held& held);
// Weighs what seems lightest, ahead of who has to choose.
void weigh_some(Held& held);
// Recovery, once the pages are settled.
void rank_all(Held& held);
// The first thing about ranks that does not hold, in words; null if all does.
const char* broken_ranks(const Region& r);

// What whoever ends or publishes items of a page calls behind it.
inline void note_loss(Held& held, uint64_t page) {
  if (held.region.chooses_pages() && RELIVE_RULE(D8_lighter)) rank_around(held, page);
}

}  // namespace relive
