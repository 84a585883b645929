// Hooks of tests: pages moved and pinned, pages spilled, a disk that fails (rules D6, D7; layout points 1 and 5).
#pragma once

#include "relive/table/table.hpp"

namespace relive {

Status move_all_pages(Table& table, uint64_t* moved);     // every CLOSED page to another frame
Status pin_page(Table& table, int64_t key, bool pin);     // a page kept where it is, or no more
Status spill_all_pages(Table& table, uint64_t* spilled);  // every CLOSED page to the disk
void fail_disk(Table& table, int read_error, int write_error);

}  // namespace relive
