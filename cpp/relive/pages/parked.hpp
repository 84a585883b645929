// Which page a lane names, and the pages that lanes leave to the next ones of their slots (rule E5).
//
// Locking: under the table lock. Nothing here allocates, sleeps or calls the system (rule C4).
// Cost:    O(1), can_go_on O(pages that a window reaches back over), close_oldest_parked O(lanes).
#pragma once

#include <cstdint>

#include "relive/pages/pages.hpp"

namespace relive {

// Whether the lane of the page names it as the one where its rows go, or will go. A page that nobody names gets no rows.
bool is_named_by_its_lane(const Region& r, uint64_t page);
// Whether it is OPEN and its lane is CLOSED: nobody writes it, and who opens that lane next goes on in it (rule E5).
bool is_parked(const Region& r, uint64_t page);
// The page in which the next lane of this slot goes on; kNoPage where there is none.
uint64_t parked_page(const Region& r, uint32_t lane_slot);
// Whether all rows to come can have all that they need before them: none of it has gone yet.
bool can_go_on(const Region& r, uint64_t page);
// The oldest parked page is parked no longer but CLOSED. False if there is none. O(lanes).
bool close_oldest_parked(Held& held);

}  // namespace relive
