// Open episodes are dropped: their rows stop being steps, and the lane continues after them (rules V1 to V4).
//
// Owner:   a Writer owns one Abandoning: the number of its lanes where an abandonment has begun and is not done.
// Locking: the writer's mutex. The table lock is taken for at most 256 rows at a time (rule C3).
// Cost:    O(rows of the episode x indexes). finish() is one comparison if no abandonment has begun.
#pragma once

#include <cstddef>

#include "relive/table/table.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

class Abandoning final {
 public:
  // Drops the open episode of the lane. If the deadline passes, a later call of abandon() or finish() continues.
  Status abandon(Table& table, WriterLane& lane, const Deadline& deadline);
  // Every call of a lane first finishes what an earlier call began.
  Status finish(Table& table, LaneBlock block, const Deadline& deadline) {
    for (size_t m = 0; num_begun_ > 0 && m < block.num_lanes(); ++m)
      if (block.lane(m).is_abandoning) RELIVE_RETURN_IF_ERROR(abandon(table, block.lane(m), deadline));
    return {};
  }

 private:
  size_t num_begun_ = 0;
};

}  // namespace relive
