// Chooses the page to evict from a full table if the remover of the first index is not Fifo (rule D8): the page whose
// eviction ends the fewest items of that index; among equals, the oldest.
//
// Owns:    nothing; the tree of weights is DERIVED, and recovery rebuilds it.
// Locking: every function runs under the table lock.
// Cost:    note_loss O(pages that a window touches x log8 pages); choose_page the same, plus the rows of a window for
//          each page that it weighs, 8192 rows at most. Nothing if the remover is Fifo.
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"
#include "relive/words/testing.hpp"

namespace relive {

// A page's *weight* is the number of live and pending items of the first index that need its rows, items of
// neighbouring pages included. A tree of minima stores for each page a lower bound of its weight, and its age below.
// choose_page() weighs the best page and stores the true weight, until the best page is as light as its bound. An item
// that ends therefore costs one store and its ancestors, and only candidates for eviction are weighed.
//
// Call this when a page becomes CLOSED, stops being CLOSED, or loses its last row.
void rank_page(Held& held, uint64_t page);
// Call this when items of the page end or become whole: the page, and the pages that those items reach, may be lighter.
void rank_around(Held& held, uint64_t page);
// The CLOSED page to evict; kNoPage if there is none.
uint64_t choose_page(Held& held);
// Weighs the pages that seem lightest in advance, so that choose_page() has less to do.
void weigh_some(Held& held);
// Rebuilds the tree in recovery, after the pages are settled.
void rank_all(Held& held);
// The first broken invariant of the tree, in words; null if none is broken.
const char* broken_ranks(const Region& r);

// Call this after items of a page end or are published.
inline void note_loss(Held& held, uint64_t page) {
  if (held.region.chooses_pages() && RELIVE_RULE(D8_lighter)) rank_around(held, page);
}

}  // namespace relive
