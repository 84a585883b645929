#include "relive/table/writer_abandon.hpp"

#include <algorithm>
#include <utility>

#include "relive/pages/abandon.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/pins.hpp"
#include "relive/table/writer_room.hpp"

namespace relive {
namespace {

// Calls each(held, page, begin, end) for the episode's rows that are still there, oldest first, as many in a critical
// section as it may take. `each` returns where it stopped: before `end` if the critical section may do no more.
template <class Each>
Status for_each_part(Table& table, const WriterLane& lane, const Deadline& deadline, Each&& each) {
  const Region& r = table.region();
  uint32_t row = 0;
  for (size_t part = 0; part < lane.episode_pages.size();) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t left = kRowsPerSection; part < lane.episode_pages.size() && left > 0;) {
      const uint64_t page = r.alive(lane.episode_pages[part].ref);
      const Range range = page == kNoPage ? Range{0, 0} : range_of(r, page);
      const uint32_t begin = std::max({row, lane.episode_pages[part].first, range.step_begin});
      if (begin >= range.step_end) {
        ++part;
        row = 0;
        --left;
        continue;
      }
      const auto end = static_cast<uint32_t>(std::min<size_t>(range.step_end, begin + left));
      row = each(locked.held(), page, begin, end);
      left -= std::min<size_t>(left, row - begin);
      if (row < end) break;
    }
    locked.room_came();
  }
  return {};
}

// Ends the items that begin before the episode and have rows of it (rules V1, V3).
Status remove_all_in_front(Table& table, const WriterLane& lane, bool are_tails, const Deadline& deadline) {
  if (!is_reached_over_ends(table.region()) || lane.episode_pages.empty()) return {};
  WalkBack walk{lane.episode_pages.front().ref, lane.episode_pages.front().first, lane.uid};
  for (bool is_over = false; !is_over;) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    is_over = remove_in_front(locked.held(), &walk, kRowsPerSection, are_tails);
  }
  return {};
}

// A reader that pins every page (rule D7) may have chosen an item of the episode before the item ended, and then reads
// it to its end. So this waits until no page is pinned (rule V2).
Status outwait_pins(Table& table, const Deadline& deadline) {
  while (RELIVE_RULE(V2_holders)) {
    {
      Locked locked(table.door(), deadline);
      if (locked.status().ok() && is_held(table.region())) (void)locked.sweep_dead();
      RELIVE_RETURN_IF_ERROR(locked.status());
      if (!is_held(table.region())) break;
    }
    RELIVE_RETURN_IF_ERROR(wait_for_pins(table, deadline));
  }
  return {};
}

// The lane is cut, and another lane of the same slot continues after it, as a later writer's would (rules V4, E5).
Status begin_lane_again(Table& table, WriterLane& lane, const Deadline& deadline) {
  WriterLane fresh;
  while (true) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (!locked.cut(lane.slot)) continue;  // this critical section has swept its share
    RELIVE_FAIL_POINT(abandon_cut);
    const uint32_t slot = lane.slot;
    fresh.episode_values.swap(lane.episode_values);
    fresh.episode_pages.swap(lane.episode_pages);
    fresh.episode_pages.clear();
    if (lane.starts != nullptr) {  // its cells go with the page
      lane.starts->cells.clear();
      lane.starts->moved.clear();
      lane.starts->run_cells = lane.starts->num_fresh = 0;
    }
    fresh.starts.swap(lane.starts);
    std::swap(lane, fresh);  // no memory is freed under the lock (rule C4)
    begin_lane(locked.held(), lane, slot, table.participant());
    return {};
  }
}

}  // namespace

Status Abandoning::abandon(Table& table, WriterLane& lane, const Deadline& deadline) {
  if (!lane.in_episode) return {};
  const Region& r = table.region();
  if (!lane.is_abandoning) ++num_begun_;
  lane.is_abandoning = true;
  RELIVE_RETURN_IF_ERROR(remove_all_in_front(table, lane, false, deadline));
  const auto remove = [&r](Held& held, uint64_t page, uint32_t begin, uint32_t end) {
    if (RELIVE_RULE(V1_items)) remove_items(held, page, begin, end);
    if (end == range_of(r, page).step_end) renew_word(held, page);
    return end;
  };
  RELIVE_RETURN_IF_ERROR(for_each_part(table, lane, deadline, remove));
  RELIVE_RETURN_IF_ERROR(outwait_pins(table, deadline));
  const auto make_tails = [&r](Held& held, uint64_t page, uint32_t begin, uint32_t end) {
    const uint32_t row = rows_become_tails(held, page, begin, end);
    if (row == range_of(r, page).step_end) free_if_lifeless(held, page);
    return row;
  };
  RELIVE_RETURN_IF_ERROR(for_each_part(table, lane, deadline, make_tails));
  RELIVE_RETURN_IF_ERROR(remove_all_in_front(table, lane, true, deadline));
  RELIVE_RETURN_IF_ERROR(begin_lane_again(table, lane, deadline));
  --num_begun_;
  return {};
}

}  // namespace relive
