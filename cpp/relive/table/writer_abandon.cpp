// Episodes that are given up: their rows, hold by hold, and the lane that goes on behind them (rules V1 to V4).
#include <algorithm>

#include "relive/pages/abandon.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/pins.hpp"
#include "relive/table/writer.hpp"
#include "relive/table/writer_cells.hpp"

namespace relive {

// The page that the lane's run is about to be written into, as one of the episode's. Pages that are gone are forgotten
// where room for more would be taken.
void Writer::note_part(LaneWriter& lane) const {
  if (lane.run.count == 0) return;
  if (lane.has_last && lane.run.first != 0) return;  // noted with the rows before it
  const Region& r = table_->region();
  if (!lane.has_last) lane.parts.clear();
  const uint64_t ref = r.ref_of(lane.page, lane.word);
  if (!lane.parts.empty() && lane.parts.back().ref == ref) return;
  if (lane.parts.size() == lane.parts.capacity())
    std::erase_if(lane.parts, [&r](const EpisodePart& part) { return r.alive(part.ref) == kNoPage; });
  lane.parts.push_back({ref, lane.run.first});
}

// Calls each(held, page, begin, end) for the episode's rows that are there, oldest first and so many a hold as one may;
// it returns where it stopped, before `end` where the hold may do no more.
template <class Each>
Status Writer::for_each_part(const LaneWriter& lane, const Deadline& deadline, Each&& each) {
  const Region& r = table_->region();
  uint32_t row = 0;
  for (size_t part = 0; part < lane.parts.size();) {
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t left = kRowsPerHold; part < lane.parts.size() && left > 0;) {
      const uint64_t page = r.alive(lane.parts[part].ref);
      const Range range = page == kNoPage ? Range{0, 0} : range_of(r, page);
      const uint32_t begin = std::max({row, lane.parts[part].first, range.step_begin});
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

Status Writer::remove_all_in_front(const LaneWriter& lane, bool are_tails, const Deadline& deadline) {
  if (!is_reached_over_ends(table_->region()) || lane.parts.empty()) return {};
  WalkBack walk{lane.parts.front().ref, lane.parts.front().first, lane.uid};
  for (bool is_over = false; !is_over;) {
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    is_over = remove_in_front(locked.held(), &walk, kRowsPerHold, are_tails);
  }
  return {};
}

// Who holds all pages (rule D7) may have chosen an item of the episode before it ended, and reads it to its end.
Status Writer::outwait_holders(const Deadline& deadline) {
  while (RELIVE_RULE(V2_holders)) {
    {
      Locked locked(table_->door(), deadline);
      if (locked.status().ok() && is_held(table_->region())) (void)locked.sweep_dead();
      RELIVE_RETURN_IF_ERROR(locked.status());
      if (!is_held(table_->region())) break;
    }
    RELIVE_RETURN_IF_ERROR(wait_for_holders(deadline));
  }
  return {};
}

// The lane ends here, and another of the same slot goes on behind it, as a writer's that comes later (rule E5).
Status Writer::begin_lane_anew(LaneWriter& lane, const Deadline& deadline) {
  LaneWriter fresh;
  while (true) {
    Locked locked(table_->door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (!locked.cut(lane.slot)) continue;  // the hold swept as many as it may
    RELIVE_FAIL_POINT(abandon_cut);
    const uint32_t slot = lane.slot;
    fresh.said.swap(lane.said);
    fresh.parts.swap(lane.parts);
    fresh.parts.clear();
    if (lane.starts != nullptr) {  // its cells go with the page
      lane.starts->cells.clear();
      lane.starts->moved.clear();
      lane.starts->run_cells = lane.starts->fresh = 0;
    }
    fresh.starts.swap(lane.starts);
    std::swap(lane, fresh);  // nothing is freed under the lock
    take_lane(locked.held(), lane, slot);
    return {};
  }
}

Status Writer::abandon_lane(LaneWriter& lane, const Deadline& deadline) {
  if (!lane.has_last) return {};
  const Region& r = table_->region();
  if (!lane.is_given_up) ++num_given_up_;
  lane.is_given_up = true;
  RELIVE_RETURN_IF_ERROR(remove_all_in_front(lane, false, deadline));
  const auto remove = [&r](Held& held, uint64_t page, uint32_t begin, uint32_t end) {
    if (RELIVE_RULE(V1_items)) remove_items(held, page, begin, end);
    if (end == range_of(r, page).step_end) renew_word(held, page);
    return end;
  };
  RELIVE_RETURN_IF_ERROR(for_each_part(lane, deadline, remove));
  RELIVE_RETURN_IF_ERROR(outwait_holders(deadline));
  const auto make_tails = [&r](Held& held, uint64_t page, uint32_t begin, uint32_t end) {
    const uint32_t row = rows_become_tails(held, page, begin, end);
    if (row == range_of(r, page).step_end) free_if_lifeless(held, page);
    return row;
  };
  RELIVE_RETURN_IF_ERROR(for_each_part(lane, deadline, make_tails));
  RELIVE_RETURN_IF_ERROR(remove_all_in_front(lane, true, deadline));
  RELIVE_RETURN_IF_ERROR(begin_lane_anew(lane, deadline));
  --num_given_up_;
  return {};
}

Status Writer::finish_abandoning(const StepBlock& block, const Deadline& deadline) {
  for (size_t m = 0; num_given_up_ > 0 && m < block.num_lanes; ++m)
    if (lane_of(block, m).is_given_up) RELIVE_RETURN_IF_ERROR(abandon_lane(lane_of(block, m), deadline));
  return {};
}

Status Writer::abandon(const StepBlock& block, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  const Call call(*this, deadline);
  RELIVE_RETURN_IF_ERROR(call.status());
  for (size_t m = 0; m < block.num_lanes; ++m) RELIVE_RETURN_IF_ERROR(abandon_lane(lane_of(block, m), deadline));
  return {};
}

}  // namespace relive
