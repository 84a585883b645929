#include "relive/pages/crossing.hpp"

#include <algorithm>

#include "relive/pages/late.hpp"
#include "relive/pages/page_rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

bool is_first_lane(const Region& r, uint64_t page, uint64_t uid) {
  return r.pages[page].lane_uid.load(kRelaxed) == uid;
}

// The first row before `end` that a lane wrote into a page; `end` if the lane wrote none of them. Uids only rise in a
// page.
uint32_t first_row_of(const Region& r, uint64_t page, uint32_t end, uint64_t uid) {
  if (is_first_lane(r, page, uid)) return 0;
  uint32_t begin = 0;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    uint32_t step = middle;  // a tail has no mark: it belongs to the lane of the step before it
    while (step > begin && r.is_tail(page, step)) --step;
    if (!r.is_tail(page, step) && r.lane_of(r.slot_of(page, step)) >= uid) {
      end = step;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// Whether a cut of the lane would now turn its last row, a step, into a tail.
bool may_become_tail(const Region& r, uint64_t page, uint32_t step_end, bool has_seam) {
  if (r.geometry->has_state == 0 || has_seam) return false;
  if (step_end == 0) {
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    if (page == kNoPage) return true;
    step_end = range_of(r, page).step_end;
  }
  return step_end > 0 && !r.is_tail(page, step_end - 1);
}

// The first row of a page with `target` steps of the lane before it; the caller knows that the row exists.
uint32_t row_of_step(const Region& r, uint64_t page, uint64_t uid, uint32_t step_end, uint64_t target) {
  uint32_t begin = first_row_of(r, page, step_end, uid), end = step_end;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (steps_before(r, page, middle, uid) >= target) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// A cursor over the steps of a lane, used under the lock.
struct LaneRow {
  const Region& r;
  uint64_t page;
  uint32_t row;
  uint64_t uid;

  // Whether the current row exists and is a step of the lane.
  bool is_step() const {
    const Range range = range_of(r, page);
    return row >= range.step_begin && row < range.step_end && !r.is_tail(page, row) &&
           r.lane_of(r.slot_of(page, row)) == uid;
  }
  // Moves to the next step. Returns false if the lane has no more.
  bool go_on() {
    do {
      if (++row == r.page_len) {
        page = r.alive(r.pages[page].next.load(kRelaxed));
        row = 0;
        if (page == kNoPage) return false;
      }
    } while (row < range_of(r, page).step_end && r.is_tail(page, row));
    return is_step();
  }
  // Moves to the step before. Returns false at the first step of the lane.
  bool go_back() {
    do {
      if (row == 0) {
        page = r.alive(r.pages[page].prev.load(kRelaxed));
        row = r.page_len;
        if (page == kNoPage) return false;
      }
      --row;
    } while (r.is_tail(page, row));
    return is_step();
  }
};

}  // namespace

bool crosses_ends(const Region& r) {
  const auto indexes = r.row_indexes();
  return std::any_of(indexes.begin(), indexes.end(),
                     [&r](uint32_t i) { return r.header->indexes[i].sequence.crosses(); });
}

bool counts_steps(const Region& r) {
  const auto indexes = r.row_indexes();
  return std::any_of(indexes.begin(), indexes.end(), [&r](uint32_t i) {
    const SequenceConfig& sequence = r.header->indexes[i].sequence;
    return sequence.crosses() || sequence.draws_one();
  });
}

uint64_t steps_before(const Region& r, uint64_t page, uint32_t offset, uint64_t uid) {
  const uint32_t first = first_row_of(r, page, offset, uid);
  const uint64_t before = is_first_lane(r, page, uid) ? r.pages[page].first_step : 0;
  return before + (offset - first) - r.num_tails(page, first, offset);
}

uint64_t lane_step(const Region& r, uint64_t page, uint32_t offset) {
  return steps_before(r, page, offset, r.lane_of(r.slot_of(page, offset)));
}

int64_t num_decided_across(const Region& r, uint32_t index, uint32_t lane_slot, bool has_seam) {
  const Lane& lane = r.lanes[lane_slot];
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  const uint64_t uid = lane.uid.load(kRelaxed);
  uint64_t page = r.alive(lane.open.load(kRelaxed));
  uint32_t step_end = range_of(r, page).step_end;
  const uint64_t open = RELIVE_RULE(S2_last) && may_become_tail(r, page, step_end, has_seam) ? 1 : 0;
  const uint64_t needed = uint64_t{sequence.length} + sequence.bootstrap + open;
  const uint64_t num_steps = steps_before(r, page, step_end, uid);
  if (num_steps < needed) return 0;
  const uint64_t target = num_steps - needed + 1;  // number of the step that begins the first incomplete window
  while (is_first_lane(r, page, uid) && r.pages[page].first_step > target) {
    const uint64_t prev = r.alive(r.pages[page].prev.load(kRelaxed));
    if (prev == kNoPage) return static_cast<int64_t>(r.pages[page].first_t);
    page = prev;
    step_end = range_of(r, page).step_end;
  }
  return static_cast<int64_t>(r.pages[page].first_t) + row_of_step(r, page, uid, step_end, target);
}

bool has_late_columns_across(const Region& r, uint32_t index, uint64_t page, uint32_t offset) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  const uint64_t uid = r.lane_of(r.slot_of(page, offset));
  LaneRow ahead{r, page, offset, uid}, behind = ahead;
  for (uint32_t left = sequence.length + sequence.bootstrap; left > 0; --left) {
    if (!has_late_columns(r, ahead.page, ahead.row, 1)) return false;
    if (left > 1 && !ahead.go_on()) break;
  }
  for (uint32_t left = sequence.burn_in; left > 0 && behind.go_back(); --left)
    if (!has_late_columns(r, behind.page, behind.row, 1)) return false;
  return true;
}

}  // namespace relive
