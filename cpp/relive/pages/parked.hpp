// Which pages a lane names, and which pages are parked: left open by an ended lane for the next lane of its slot (rule
// E5).
//
// Owns:    nothing.
// Locking: every function runs under the table lock; none allocates, sleeps or calls the system (rule C4).
// Cost:    O(1); can_go_on O(pages that a window reaches back over); close_oldest_parked O(lanes).
#pragma once

#include <cstdint>

#include "relive/pages/pages.hpp"

namespace relive {

// Whether the page's lane names the page as the one that gets its rows now or next. A page that no lane names gets no
// rows.
bool is_named_by_its_lane(const Region& r, uint64_t page);
// Whether the page is OPEN and its lane is CLOSED: no writer owns the page, and the next lane of the slot continues in
// it.
bool is_parked(const Region& r, uint64_t page);
// The page in which the next lane of this slot continues; kNoPage if there is none.
uint64_t parked_page(const Region& r, uint32_t lane_slot);
// Whether no row that future rows may need has been evicted yet.
bool can_go_on(const Region& r, uint64_t page);
// Closes the oldest parked page. Returns false if there is none. O(lanes).
bool close_oldest_parked(Held& held);

}  // namespace relive
