// Pins keep pages in the table: a pin names one page, and a participant can pin all pages (rule D7). A CLOSED page
// without rows is freed at once if no pin names that page. A pinned one moves from the age ring to the kept list, so
// evictions do not visit the page again, and the last unpin finds the page without a search.
//
// Owns:    a participant owns its pins and its count of pins of all pages (Participant.pinning_all); a sweep ends both
//          after the participant's death (rule E4).
// Locking: every function runs under the table lock (rule C4).
// Cost:    O(1) each; is_pinned O(participants) while any pin is set; free_kept O(pages that it frees).
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

inline constexpr uint32_t kKeptPerSection = 256;  // pages freed in one critical section (rule C3)

// Whether a participant pins all pages; whether a pin names this page; whether one of the two is true.
bool is_held(const Region& r);
bool is_pinned(const Region& r, uint64_t page);
bool must_stay(const Region& r, uint64_t page);

// Adds one thread of the participant that pins all pages, or takes off `count` of them.
void pin_all_pages(Held& held, uint32_t participant);
void unpin_all_pages(Held& held, uint32_t participant, uint32_t count);
// The sum of pinning_all over all participants.
uint32_t count_pinning_all(const Region& r);

// Takes a CLOSED page without rows off the age ring: frees the page, or puts it on the kept list if it must stay.
void free_or_keep(Held& held, uint64_t page);
// Frees kept pages that no pin keeps any more, at most `most`. Returns true if the bound stopped the call.
bool free_kept(Held& held, uint32_t most);
// Clears a participant's pin, and frees the page if only this pin kept it.
void unpin(Held& held, std::atomic<uint64_t>& pin);

// Adds to the kept list, which is DERIVED; recover() also calls this.
void kept_push(Held& held, uint32_t page);

}  // namespace relive
