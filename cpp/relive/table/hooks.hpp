// Hooks for tests: pages are moved, pinned and spilled, and a disk fails (rules D6, D7; layout points 1 and 5).
//
// Owner:   a pin belongs to this handle's participant.
// Locking: the table lock, for one page at a time.
// Cost:    O(pages) for all pages.
#pragma once

#include "relive/table/table.hpp"

namespace relive {

Status move_all_pages(Table& table, uint64_t* moved);     // every CLOSED page to another frame
Status pin_page(Table& table, int64_t key, bool pin);     // the page of a row is pinned, or pinned no more
Status spill_all_pages(Table& table, uint64_t* spilled);  // every CLOSED page to the disk
void fail_disk(Table& table, int read_error, int write_error);

}  // namespace relive
