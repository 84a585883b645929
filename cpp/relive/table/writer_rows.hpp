// Rows are copied from a block into the pages of its lanes, before the commit makes them steps (rule B2).
//
// Owner:   the rows at or above step_end of a lane's open page, and its page ahead, are the lane owner's alone.
// Locking: the writer's mutex; the table lock must not be taken (rule C4).
// Cost:    about 0.1 us for a row of 64 bytes; large rows at the speed of memory.
#pragma once

#include "relive/table/start_values.hpp"
#include "relive/table/writer_columns.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

// The rows of the run of `lane`, column m of the block, and the state after them if it is known. policy_version:
// stamped on the rows.
void write_rows(const Region& r, const WriterColumns& columns, const StartValues& starts, const StepBlock& steps,
                WriterLane& lane, size_t m, uint32_t policy_version);

// The state cells of the row after the run: the frozen cell of a seam, or the tail of an episode that ended. The
// state is the one after `row` of the block, or zeros if the block has none.
void write_next_cell(const Region& r, const WriterColumns& columns, const StepBlock& steps, const WriterLane& lane,
                     size_t row, size_t m);

}  // namespace relive
