// Room for rows that are about to be written: open pages, frames and start cells that have memory.
//
// Owner:   an opened page, and a cell taken from the free list, belong to the lane.
// Locking: the writer's mutex. Pages are opened, and cells taken, under the table lock. Memory is committed, and the
//          waits for other processes are, without it.
// Cost:    O(lanes) without a lock if every lane has room; a page 0.1 us, memory in parts of 32 MiB (frames) or 64 KiB
//          (cells). At a full table a call may wait, up to its deadline.
#pragma once

#include "relive/table/start_values.hpp"
#include "relive/table/table.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

// Before the first row of a block is written: commits memory for all rows that are not stored yet, so that a full file
// system is reported while nothing of the block is stored (kStorageFull). If old rows go for new ones, their frames
// come back: then only the room below the capacity is needed.
Status take_frames(Table& table, const StartValues& starts, LaneBlock block, const Deadline& deadline);

// Before the rows of a round are written: a page for the next row of each lane and, if a state cell will fall on the
// page after it, that page too.
Status open_pages(Table& table, LaneBlock block, const Deadline& deadline);

// Before the rows of a round are written: a start cell for each row that begins a window. Cells that an earlier round
// took for rows that it could not commit are used first. Only if starts.is_used().
Status take_cells(Table& table, const StartValues& starts, LaneBlock block, const Deadline& deadline);

// One slice of a wait for readers that pin every page (rule D7). A participant that died while it pinned pages is swept
// by the next call that asks for room.
Status wait_for_pins(Table& table, const Deadline& deadline);

}  // namespace relive
