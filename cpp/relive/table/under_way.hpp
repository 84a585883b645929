// Items under way: items that have begun and are not complete. A queue and a staleness budget count them from the moment
// they begin (rule P6), if an item that has begun needs no more room to be completed. That is so for episodes, for
// groups of episodes, and for windows that are complete before the next one begins.
//
// Owner:   an UnderWay belongs to one call of a writer and refers to its block. It allocates in its constructor only.
// Locking: look() is exact under the table lock. A waiter may call it without the lock, and asks again under it.
// Cost:    O(lanes); for groups O(lanes x log lanes + groups).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "relive/table/writer_lane.hpp"
#include "relive/words/region.hpp"

namespace relive {

class UnderWay final {
 public:
  UnderWay(const Region& r, LaneBlock block);

  // Whether this index's limiter, as it is now, counts items from the moment they begin.
  static bool is_counted(const Region& r, uint32_t index, const LimiterConfig& limiter);
  // Finds the items of an index that are under way. Those in lanes whose writer was refused do not count.
  void look(uint32_t index);
  // The items that look() found and that count.
  int64_t num_items() const { return num_items_; }
  // The groups that begin with the episodes in the next `rows` rows of the block, after the first `stored` ones. A
  // member of a group that has begun asks for nothing.
  int64_t groups_of(size_t stored, size_t rows);

 private:
  int64_t count_groups();

  const Region& r_;
  const LaneBlock block_;
  uint32_t index_ = 0;
  int64_t num_items_ = 0, num_groups_ = 0;
  // A value of the group_by column, and the episodes of that value: under way in look(), and of the block.
  struct Members {
    int64_t value;
    int64_t count;
    bool operator<(const Members& other) const { return value < other.value; }
  };
  std::vector<Members> under_way_, counted_;
};

}  // namespace relive
