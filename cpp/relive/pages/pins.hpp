// Pages that must stay: those that a pin names, and all of them while somebody holds (rule D7).
//
// A page that is CLOSED and has no rows left is freed at once, or else put on the kept list. There it lies off the age
// ring, so no eviction passes it again, and whoever lets go finds what waited without a search.
//
// Owner:   a hold is its participant's (Participant.holding), so who dies holding is swept like any other (rule E4).
// Locking: everything here runs under the table lock (rule C4).
// Cost:    O(1) each; free_kept O(pages freed).
#pragma once

#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

inline constexpr uint32_t kKeptPerHold = 256;  // pages freed in one hold of the lock (rule C3)

// Whether somebody holds all pages; whether a pin names this one; whether it must stay for either reason.
bool is_held(const Region& r);
bool is_pinned(const Region& r, uint64_t page);
bool must_stay(const Region& r, uint64_t page);

// One thread of the participant more, or `count` of them fewer, that holds every page where it is.
void pin_all_pages(Held& held, uint32_t participant);
void unpin_all_pages(Held& held, uint32_t participant, uint32_t count);
// The sum of holding over all participants.
uint32_t count_holding(const Region& r);

// A CLOSED page without rows, on the age ring until now: freed, or kept where it must stay.
void free_or_keep(Held& held, uint64_t page);
// Frees kept pages that nothing keeps any more, at most `most`. True where it stopped at that.
bool free_kept(Held& held, uint32_t most);
// Clears one participant's pin; a page that only waited for it is freed.
void unpin(Held& held, std::atomic<uint64_t>& pin);

// DERIVED, also rebuilt by recover().
void kept_push(Held& held, uint32_t page);

}  // namespace relive
