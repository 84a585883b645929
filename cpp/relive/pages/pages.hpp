// The life of a page, FREE(g) -> OPEN(g) -> CLOSED(g) -> FREE(g + 1), and of the steps in it (rules D1 to D6).
//
// Owns:    nothing; the region owns the pages.
// Locking: every function runs under the table lock; none allocates, sleeps or calls the system (rule C4).
// Cost:    open_page O(P / 32) for clearing; evict_steps O(steps + rows that items reach back over, once a page);
//          free_page O(1).
#pragma once

#include <cstdint>

#include "relive/pages/bulk.hpp"
#include "relive/words/held.hpp"

namespace relive {

enum class OpenResult : uint32_t { kOk, kNoPage, kNoFrame, kNoBulk };

// Takes a free page and a frame for the lane, and links the page after the lane's open page. With `ahead` the lane
// keeps its open page and names the new page as the next one. The caller handles a failure: kNoPage: sweep, or call
// relieve_pressure(); kNoFrame: commit more of the slabs, outside the lock; kNoBulk: wait for the spill thread.
OpenResult open_page(Held& held, uint32_t lane_slot, bool ahead, bool history_free, uint64_t* ref);

// OPEN -> CLOSED; gives the page a ticket.
void close_page(Held& held, uint64_t page);

// Moves the page to the back of the age ring, together with the page opened ahead of it.
void renew_age(Held& held, uint64_t page);

// Evicts `count` steps: the oldest, or those of the pages that choose_page() selects (eviction_order.hpp). A page that
// becomes empty is freed or kept (pins.hpp). Returns false if explicit items on these rows are left and this critical
// section has ended as many as it may (rule X7). The caller then releases the lock and calls again.
bool evict_steps(Held& held, uint64_t count);

// The same, to make room for new rows. Counts the evicted items that the first index's remover would have kept.
bool evict_for_room(Held& held, uint64_t count);

// Pool pressure: evicts rows of the oldest page that no writer owns, as many as one critical section may. The caller
// repeats the call until a page is free. Returns false if there is no such page, or while a participant pins all pages.
bool relieve_pressure(Held& held);

// Frees a page, CLOSED or parked, that has no live item and that no live window of a neighbour reaches into: FREE(g +
// 1). Callers try this after deletions and after items are used up. Does nothing if the page must stay or if an index
// is explicit.
void free_if_lifeless(Held& held, uint64_t page);
// Counts uses of a page that draws have claimed and not decided upon. Such a page is not freed early (rule G7).
void note_claim(Held& held, uint64_t page);
void forget_claim(Held& held, uint64_t page);

// CLOSED -> FREE(g + 1) for a page without rows that is on no list. The caller has checked that no pin keeps the page
// (pins.hpp).
void free_page(Held& held, uint64_t page);

// Frees the empty page of a lane that ends. If the page never had a row, the page before becomes the lane's last page
// first, so that no window looks for a row after it. If its rows were evicted, the link stays as the mark of lost rows.
void free_empty_page(Held& held, uint64_t page);
void unlink_empty_page(Held& held, uint64_t page);

// Copies a CLOSED page to a free frame (rule D6). No other function copies rows under the lock. Returns false if no
// frame is free, or the page is not CLOSED or must stay.
bool move_page(Held& held, uint64_t page);

// The first existing row that items of the page can use, counted from row 0 of the page: step_begin, or a negative
// number if rows of the pages before still exist. kAllThere: no row that an item of the page could need was lost. The
// second function serves a page that is not open yet: the caller gives its prev ref and whether its first row begins an
// episode.
inline constexpr int64_t kAllThere = INT64_MIN / 2;
int64_t first_row_there(const Region& r, uint64_t page);
int64_t first_row_there_before(const Region& r, uint64_t prev_ref, bool history_free);

// The content of rows [begin, end) of a page: steps, removed steps among them, and (step, index) pairs that are live or
// pending.
struct Living {
  uint64_t steps = 0, removed_steps = 0;
  uint32_t pairs = 0;
};
Living count_living(const Region& r, uint64_t page, uint32_t begin, uint32_t end);

// Ends items [begin, end) of one index, counted from row 0 of the page, on this page and on the following pages as far
// as the lane's history reaches. Corrects the counts of these pages. `end` may be negative.
void end_items(Held& held, uint32_t index, uint64_t page, int64_t begin, int64_t end);
// Ends the items that may run over the end of the page, on this page and on the pages before, because the next page is
// gone.
void end_items_at_end(Held& held, uint64_t page);

// DERIVED lists; recover() rebuilds them with these functions.
void ring_push_back(Held& held, uint32_t page);
void ring_remove(Held& held, uint32_t page);
void free_push_back(Held& held, uint32_t page);

}  // namespace relive
