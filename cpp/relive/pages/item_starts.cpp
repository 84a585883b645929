#include "relive/pages/item_starts.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"
#include "relive/pages/cells.hpp"
#include "relive/pages/crossing.hpp"
#include "relive/words/rng.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

uint32_t step_of(uint32_t head) { return head & kStepMask; }

// Whether the episode ends directly after the current row of `ahead`, which lies `offset` rows after row 0 of the page.
bool ends_behind(const Region& r, RowAhead& ahead, uint64_t offset) {
  if (r.geometry->has_state == 0) return (ahead.head() & (kTerminatedBit | kTruncatedBit)) != 0;
  return ahead.go_to(offset + 1) && ahead.is_tail();
}

// Whether row `last` is step number `step` of the episode of an earlier row.
bool is_there(RowAhead& ahead, uint64_t last, uint32_t step) {
  return ahead.go_to(last) && !ahead.is_tail() && step_of(ahead.head()) == step;
}

// The steps of one episode that rule S6 draws: step s with probability 1 / (s + 1).
class DrawnSteps final {
 public:
  // For the episode of this step. The result depends on constants only: the seed, the lane's uid, and the number of
  // steps before the episode. Freed and moved pages do not change the result.
  DrawnSteps(const Region& r, uint64_t page, uint32_t offset, uint32_t step)
      : rng_(r.geometry->seed, r.lane_of(r.slot_of(page, offset)), lane_step(r, page, offset) - step, kDrawnSteps) {}
  bool has(uint32_t step) const { return rng_.below(step, step + 1) == 0; }

 private:
  // Takes the place of the attempt in the random stream: no draw of items makes so many attempts.
  static constexpr uint64_t kDrawnSteps = uint64_t{1} << 32;
  CounterRng rng_;
};

// Whether an episode ends within the `count` rows after this one, all of which exist.
bool ends_within(const Region& r, const RowAhead& from, uint64_t offset, uint32_t count) {
  RowAhead scout = from;  // a copy: `from` must not move
  for (uint64_t last = offset + count; offset <= last && scout.go_to(offset); ++offset)
    if (ends_behind(r, scout, offset)) return true;
  return false;
}

// Whether this step begins the only item of its episode: the step is drawn (rule S6), `length` steps follow in the
// ended episode, and no later drawn step has as many. The walk stops at the end of the episode or at the row that
// completes the window of the next drawn step.
bool is_the_one_drawn(const Region& r, uint32_t length, uint64_t page, uint32_t offset, uint32_t step,
                      RowAhead& ahead) {
  const DrawnSteps drawn(r, page, offset, step);
  if (!drawn.has(step)) return false;
  uint64_t last = uint64_t{offset} + length - 1;
  if (step == 0 && ends_within(r, ahead, offset, length - 1)) return true;  // at most `length` steps: one item
  if (!is_there(ahead, last, step + length - 1)) return false;
  if (!RELIVE_RULE(S6_last)) return true;
  RowAhead scout = ahead;
  while (!ends_behind(r, scout, last)) {
    if (!scout.go_to(++last)) return false;  // the page was deleted
    if (drawn.has(++step)) return false;
  }
  return true;
}

// Whether the first row of a window that an end moved back has its start value. The writer stores the value before it
// commits the end. If the writer died or was dropped, the process that ends the lane has no value to store.
bool has_start(const Region& r, const SequenceConfig& sequence, uint64_t page, uint32_t offset, uint32_t step) {
  if (!r.cells || !RELIVE_RULE(B4_none)) return true;
  const uint64_t first = row_before(r, page, offset, std::min(sequence.burn_in, step));
  return first != kNoSlot &&
         load_cell_word(r.page_base(r.page_of(first)) + r.offset_of(first) * r.geometry->record_stride) != kNoCell;
}

// The number of rows of a lane that belong to ended episodes.
int64_t num_ended(const Region& r, uint32_t lane_slot, int64_t num_rows) {
  uint64_t page = r.alive(r.lanes[lane_slot].open.load(kRelaxed));
  uint32_t end = Range::unpack(r.pages[page].range.load(kRelaxed)).step_end;
  if (end == 0) {
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    if (page == kNoPage) return 0;
    end = r.page_len;
  }
  if (r.is_tail(page, end - 1)) return num_rows;
  const uint32_t head = r.head_of(r.slot_of(page, end - 1)).load(kRelaxed);
  const bool has_ended = r.geometry->has_state == 0 && (head & (kTerminatedBit | kTruncatedBit)) != 0;
  return has_ended ? num_rows : num_rows - step_of(head) - 1;
}

}  // namespace

bool RowAhead::go_to(uint64_t offset) {
  while (page_ != kNoPage && offset - first_ >= r_.page_len) {
    page_ = r_.alive(r_.pages[page_].next.load(kRelaxed));
    first_ += r_.page_len;
  }
  if (page_ == kNoPage) return false;
  row_ = static_cast<uint32_t>(offset - first_);
  return row_ < Range::unpack(r_.pages[page_].range.load(kRelaxed)).step_end;
}

uint64_t row_before(const Region& r, uint64_t page, uint32_t offset, uint32_t count) {
  for (; count > offset; offset = r.page_len - 1) {
    count -= offset + 1;
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    if (page == kNoPage) return kNoSlot;
  }
  offset -= count;
  return offset < Range::unpack(r.pages[page].range.load(kRelaxed)).step_begin ? kNoSlot : r.slot_of(page, offset);
}

bool begins_item(const Region& r, uint32_t index, uint64_t page, uint32_t offset, RowAhead& ahead, bool is_cut) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  if (sequence.crosses()) return sequence.begins_at(lane_step(r, page, offset));
  const uint32_t step = step_of(r.head_of(r.slot_of(page, offset)).load(kRelaxed));
  if (sequence.draws_one()) return !is_cut && is_the_one_drawn(r, sequence.length, page, offset, step, ahead);
  const bool is_candidate = sequence.begins_at(step);
  const bool shifts = sequence.at_end == AtEnd::kShift;
  if (!is_candidate && !shifts) return false;
  // The steps of an episode follow each other: if the row `length` - 1 rows later has the expected step number, no end
  // lies between the two rows.
  const uint64_t last = uint64_t{offset} + sequence.length - 1;
  const bool is_whole = !RELIVE_RULE(S1_whole) || is_there(ahead, last, step + sequence.length - 1);
  const bool is_dropped = is_cut && sequence.only_ended != 0;
  if (is_whole)
    return (is_candidate && sequence.only_the_last == 0 && !(is_dropped && sequence.waits_for_end())) ||
           (shifts && !is_dropped && ends_behind(r, ahead, last) && has_start(r, sequence, page, offset, step));
  if (sequence.at_end == AtEnd::kDrop || is_dropped) return false;
  return shifts ? step == 0 : is_candidate;
}

int64_t num_decided(const Region& r, uint32_t index, uint32_t lane_slot, int64_t num_rows, bool has_seam) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  if (sequence.crosses()) return num_decided_across(r, index, lane_slot, has_seam);
  if (sequence.draws_one()) return num_ended(r, lane_slot, num_rows);
  // The window of row x is complete when row x + after() exists, or its state cell if the window needs no more of that
  // row. Whether the window is the episode's last is known when the row after the window is a step for good: the last
  // row of a lane may still become a tail.
  int64_t behind = r.shape(index).after();
  if (RELIVE_RULE(S2_last) && sequence.at_end == AtEnd::kShift)
    behind = std::max(behind, int64_t{sequence.length} + r.geometry->has_state);
  if (RELIVE_RULE(S2_last) && sequence.waits_for_end()) behind = std::max(behind, int64_t{sequence.length} + 1);
  return num_rows + (has_seam ? 1 : 0) - behind;
}

void end_what_begins_nothing(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end) {
  const Region& r = held.region;
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  if (sequence.draws_one()) {
    const uint32_t first = step_of(r.head_of(r.slot_of(page, begin)).load(kRelaxed));
    const DrawnSteps drawn(r, page, begin, first);
    for (uint32_t offset = begin; offset < end; ++offset)
      if (!drawn.has(first + offset - begin)) Leaves::retire(held, index, r.slot_of(page, offset), kStateEnded);
    return;
  }
  const bool crosses = sequence.crosses();
  uint64_t step = crosses ? lane_step(r, page, begin) : step_of(r.head_of(r.slot_of(page, begin)).load(kRelaxed));
  for (uint32_t offset = begin; offset < end; ++offset, ++step) {  // all rows are of one episode
    if (!sequence.begins_at(step)) Leaves::retire(held, index, r.slot_of(page, offset), kStateEnded);
  }
}

}  // namespace relive
