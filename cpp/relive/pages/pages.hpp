// The life of a page: FREE(g) -> OPEN(g) -> CLOSED(g) -> FREE(g + 1), and of the steps in it (rules D1 to D6).
//
// Locking: everything here runs under the table lock. Nothing here allocates, sleeps or calls the system (rule C4).
// Cost:    open_page O(P / 32) for clearing; evict_steps O(steps + what the items reach back over, once a page);
//          free_page O(1).
#pragma once

#include <cstdint>

#include "relive/pages/bulk.hpp"
#include "relive/words/held.hpp"

namespace relive {

enum class OpenResult : uint32_t { kOk, kNoPage, kNoFrame, kNoBulk };

// Takes a free page and a frame for the lane; links it behind the lane's open page. With `ahead` the lane keeps its
// open page and names the new one as the page after it. kNoPage: the caller sweeps or calls relieve_pressure();
// kNoFrame: the caller commits more of the slabs outside the lock; kNoBulk: it waits for the spill thread.
OpenResult open_page(Held& held, uint32_t lane_slot, bool ahead, bool history_free, uint64_t* ref);

// OPEN -> CLOSED, with a ticket.
void close_page(Held& held, uint64_t page);

// To the back of the age ring, with the page opened ahead of it.
void renew_age(Held& held, uint64_t page);

// Removes `count` steps of the table, the oldest, or those that choose_page() names (choice.hpp); pages that empty on the way are freed, or kept (kept.hpp). False where
// explicit items still stand on them and this hold has ended as many as a hold may (rule X7): the caller gives the lock
// back and comes again.
bool evict_steps(Held& held, uint64_t count);

// The same to make room for rows to come: items that the first index's remover would have had stay are counted.
bool evict_for_room(Held& held, uint64_t count);

// Pool pressure: evicts the oldest page that nobody writes, as far as one hold may: the caller comes again until a page
// is free. False if there is none, or while somebody holds them all.
bool relieve_pressure(Held& held);

// FREE(g + 1) for a page, CLOSED or parked, that holds no live item and into which no live window of a neighbour reaches.
// Tries after deletions and used-up items; nothing happens where it must stay, nor where an index is explicit.
void free_if_lifeless(Held& held, uint64_t page);
// Uses of a page that draws claimed and have not decided upon: such a page does not go early (rule G7).
void note_claim(Held& held, uint64_t page);
void forget_claim(Held& held, uint64_t page);

// A CLOSED page without rows that lies on no list any more: CLOSED -> FREE(g + 1), whatever keeps it (kept.hpp asks).
void free_page(Held& held, uint64_t page);

// An empty page of a lane that goes away. Where it never held a row the page before it is the lane's last again, first
// of all: a window must not look for a row behind it. Where its rows were evicted the link stays and says so.
void free_empty_page(Held& held, uint64_t page);
void unlink_empty_page(Held& held, uint64_t page);

// Copies a CLOSED page to a free frame (rule D6): the one place where rows are copied under the lock. False where there
// is no free frame, the page is not CLOSED or must stay.
bool move_page(Held& held, uint64_t page);

// The first row, counted from row 0 of the page, that is still there of those before and in it: step_begin, or below 0
// where pages before it are whole, kAllThere where nothing that an item of the page could need was ever lost. A page
// that is not opened yet: its prev ref and whether its first row begins an episode are given.
inline constexpr int64_t kAllThere = INT64_MIN / 2;
int64_t first_row_there(const Region& r, uint64_t page);
int64_t first_row_there_before(const Region& r, uint64_t prev_ref, bool history_free);

// What the rows [begin, end) of a page hold: steps, of these removed ones, and (step, index) pairs live or pending.
struct Living {
  uint64_t steps = 0, removed_steps = 0;
  uint32_t pairs = 0;
};
Living count_living(const Region& r, uint64_t page, uint32_t begin, uint32_t end);

// Ends items [begin, end) of one index, counted from row 0 of the page, on it and on the pages after it as far as the
// lane's history reaches; corrects the counts of their pages. `end` may be below 0.
void end_items(Held& held, uint32_t index, uint64_t page, int64_t begin, int64_t end);
// Ends what may run over the end of the page, on it and on the pages before it: the page after it is gone.
void end_items_at_end(Held& held, uint64_t page);

// DERIVED lists, also rebuilt by recover().
void ring_push_back(Held& held, uint32_t page);
void ring_remove(Held& held, uint32_t page);
void free_push_back(Held& held, uint32_t page);

}  // namespace relive
