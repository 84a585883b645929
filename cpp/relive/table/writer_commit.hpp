// A block is stored round by round: the rows of a round are planned, written (writer_rows.hpp) and committed.
//
// Owner:   nothing; the plan of a lane is its `run`.
// Locking: the writer's mutex. commit_round() takes the table lock, for at most 256 rows at a time (rule C3).
// Cost:    a commit is about 30 ns a row, plus the items that the rows complete.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relive/table/start_values.hpp"
#include "relive/table/table.hpp"
#include "relive/table/writer_admission.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

// The next rows of a block that are stored together: whole steps of all lanes in which no page and no episode ends
// before the last step, or the rest of one step. So the stored rows are always a beginning of the block, in order of
// time and then of lane. stored, upto: rows of the block that are stored, and that may be. Returns the number of rows.
size_t plan_round(const Region& r, const StartValues& starts, LaneBlock block, size_t stored, size_t upto);

// Makes the planned rows steps, and writes their keys (row-major).
Status commit_round(Table& table, const StartValues& starts, LaneBlock block, const Deadline& deadline,
                    ReservedRows* reserved, int64_t* keys);

// Raises the largest priority of each index to the largest one that the block gives.
Status note_given_priorities(Table& table, const StepBlock& steps, const Deadline& deadline);

}  // namespace relive
