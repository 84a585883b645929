// Episodes and lanes end: after their last row, without a new row.
//
// Owner:   nothing. After a cut the lane's slot is free for another writer.
// Locking: the writer's mutex. A tail's state, and the start values of moved windows, are written before the table lock
//          is taken. The ends themselves are under it, at most 64 at a time (rule C3).
// Cost:    O(items that the ends publish).
#pragma once

#include <cstddef>
#include <vector>

#include "relive/table/start_values.hpp"
#include "relive/table/table.hpp"
#include "relive/table/writer_columns.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

// Ends the open episode of each lane. A lane without an open episode is passed over, so a call that met its deadline
// can be made again. kAlreadyPublished, kSeamMismatch, kMissingNext: then nothing has ended.
Status end_episodes(Table& table, const WriterColumns& columns, const StartValues& starts, LaneBlock block,
                    bool terminated, const Deadline& deadline);

// Before lanes[first ..] are cut: writes the start values of windows that the cut moves back, as the end of an episode
// would. If this fails the lanes end without these windows.
Status prepare_cut(Table& table, const StartValues& starts, std::vector<WriterLane>* lanes, size_t first,
                   const Deadline& deadline);

// Cuts lanes[*first ..] and counts *first on. Stops at the first error; then another call continues there.
Status cut_lanes(Table& table, const StartValues& starts, std::vector<WriterLane>* lanes, size_t* first,
                 const Deadline& deadline);

}  // namespace relive
