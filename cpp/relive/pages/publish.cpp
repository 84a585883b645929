#include "relive/pages/publish.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"
#include "relive/pages/changed_rows.hpp"
#include "relive/pages/crossing.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/groups.hpp"
#include "relive/pages/item_starts.hpp"
#include "relive/pages/late.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/words/predicate.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The results for the pending leaves of some rows of one page.
struct Done {
  int64_t published = 0;
  uint64_t kept_out = 0;  // complete windows that the condition keeps out (rule Q1)
  uint64_t skipped = 0;   // items that need an evicted row
};

// The page may have no live item afterwards. The page is still evicted in the normal order, because its steps stay.
void count_done(Held& held, uint32_t index, uint64_t page, const Done& done) {
  RELIVE_FAIL_POINT(publish_item_end);
  if (done.published > 0) Leaves::count_published(held, index, done.published);
  if (done.skipped > 0) held.add(held.region.header->counters.skipped_items, done.skipped);
  note_loss(held, page);
  RELIVE_FAIL_POINT(publish_counted);
  if (done.kept_out == 0) return;
  held.region.pages[page].live -= static_cast<uint32_t>(done.kept_out);
  Leaves::count_kept_out(held, index, done.kept_out);
}

// Publishes the pending leaves [begin, end) of one page, whose windows are complete.
void publish_rows(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end, FilledRows& filled,
                  Done* counted) {
  const Region& r = held.region;
  const Leaves leaves(r, index);
  Done done = *counted;  // a local copy: the compiler must assume that stores below change *counted
  for (uint32_t offset = begin; offset < end; ++offset) {
    const uint64_t slot = r.slot_of(page, offset);
    if (r.is_tail(page, offset)) continue;
    const uint16_t state = leaves.state(slot);
    done.skipped += state == kStateEnded ? 1 : 0;
    // The item was deleted while it was pending, or a row that it needs was evicted before its window was complete.
    if (RELIVE_RULE(D2d_pending) ? state != kStatePending : state == kStateRemoved) continue;
    if (!filled.has_all_of(page, offset)) {
      Leaves::keep_unfilled(held, index, slot);
      RELIVE_FAIL_POINT(publish_unfilled);
    } else {
      done.published += leaves.complete(held, slot) ? 1 : 0;
    }
  }
  *counted = done;
}

void publish_range(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end) {
  FilledRows filled(held.region, index);
  Done done;
  publish_rows(held, index, page, begin, end, filled, &done);
  count_done(held, index, page, done);
}

// The same for an index with a condition, in blocks of rows. If not all rows of a block pass, the first loop marks the
// rows that are kept out, and the second loop publishes the others. Passing rows alternate unpredictably, so the code
// has no branch on the result.
void publish_passing(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end) {
  const Region& r = held.region;
  const Leaves leaves(r, index);
  FilledRows filled(r, index);
  PassingRows passing(r, index);
  Done done;
  uint64_t slots[kEvaluatedTogether];
  for (uint32_t offset = begin; offset < end;) {
    size_t count = 0;
    const uint32_t stop = std::min<uint32_t>(end, offset + kEvaluatedTogether);
    if (passing.has_all(page, offset, stop)) {
      publish_rows(held, index, page, offset, stop, filled, &done);
      offset = stop;
      continue;
    }
    for (; offset < stop; ++offset) {
      const uint64_t slot = r.slot_of(page, offset);
      if (r.is_tail(page, offset)) continue;
      const uint16_t state = leaves.state(slot);
      done.skipped += state == kStateEnded ? 1 : 0;
      if (state != kStatePending) continue;
      if (!filled.has_all_of(page, offset)) {
        Leaves::keep_unfilled(held, index, slot);
        RELIVE_FAIL_POINT(publish_unfilled);
        continue;
      }
      const bool is_item = passing.has(page, offset, end) || !RELIVE_RULE(Q1_condition);
      leaves.keep_out_unless(is_item, slot);
      if (!is_item) RELIVE_FAIL_POINT(publish_kept_out);
      slots[count] = slot;
      count += is_item ? 1 : 0;
      done.kept_out += is_item ? 0 : 1;
    }
    for (size_t k = 0; k < count; ++k) done.published += leaves.complete(held, slots[k]) ? 1 : 0;
  }
  count_done(held, index, page, done);
}

// The same for an index of sequences, for rows that can be decided. Rows that start no item end.
void decide_range(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end) {
  Region& r = held.region;
  const Leaves leaves(r, index);
  RowAhead ahead(r, page);
  FilledRows filled(r, index);
  PassingRows passing(r, index);
  Done done;
  for (uint32_t offset = begin; offset < end; ++offset) {
    const uint64_t slot = r.slot_of(page, offset);
    if (leaves.state(slot) != kStatePending || r.is_tail(page, offset)) continue;
    if (!begins_item(r, index, page, offset, ahead, false)) {
      r.pages[page].live -= Leaves::retire(held, index, slot, kStateEnded) ? 1 : 0;
    } else if (!filled.has_all_of(page, offset)) {
      Leaves::keep_unfilled(held, index, slot);
      RELIVE_FAIL_POINT(publish_unfilled);
    } else if (!passing.has(page, offset, end) && RELIVE_RULE(Q1_condition)) {
      leaves.keep_out_unless(false, slot);
      ++done.kept_out;
      RELIVE_FAIL_POINT(publish_kept_out);
    } else {
      done.published += leaves.complete(held, slot) ? 1 : 0;
    }
  }
  count_done(held, index, page, done);
}

// For an index whose items are ended episodes: the lane's end cuts its last episode off, and the rows of that episode
// that start no item for this reason end. Nothing is published and the cursor stays; the lane's end publishes the rest.
void drop_range(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end, uint64_t coming_tail) {
  Region& r = held.region;
  const Leaves leaves(r, index);
  RowAhead ahead(r, page, coming_tail);
  for (uint32_t offset = begin; offset < end; ++offset) {
    const uint64_t slot = r.slot_of(page, offset);
    if (leaves.state(slot) != kStatePending || r.is_tail(page, offset)) continue;
    if (!begins_item(r, index, page, offset, ahead, true))
      r.pages[page].live -= Leaves::retire(held, index, slot, kStateEnded) ? 1 : 0;
  }
  note_loss(held, page);
  RELIVE_FAIL_POINT(close_dropped);
}

// The oldest page that a walk back from the lane's open page reaches: its first one, or the one after a page that was
// freed early.
uint64_t oldest_page(const Region& r, uint32_t lane_slot) {
  uint64_t page = r.alive(r.lanes[lane_slot].open.load(kRelaxed));
  while (page != kNoPage) {
    const uint64_t prev = r.alive(r.pages[page].prev.load(kRelaxed));
    if (prev == kNoPage) break;
    page = prev;
  }
  return page;
}

// Visits the rows of the lane from an index's cursor up to `stop`, counted from the lane's first row: for each page
// take(page, begin, end), then done(page, end).
template <class Take, class Done>
void walk_from_cursor(const Region& r, uint32_t index, uint32_t lane_slot, int64_t stop, Take&& take, Done&& done) {
  const uint64_t place = r.cursor(index, lane_slot).load(kRelaxed);
  uint64_t page = r.alive(r.place_ref(place));
  uint32_t begin = page == kNoPage ? 0 : r.place_offset(place);
  if (page == kNoPage) page = oldest_page(r, lane_slot);
  while (page != kNoPage) {
    const int64_t here = stop - static_cast<int64_t>(r.pages[page].first_t);
    const auto end = static_cast<uint32_t>(std::clamp<int64_t>(here, 0, range_of(r, page).step_end));
    if (end > begin) take(page, begin, end);
    begin = std::max(begin, end);
    done(page, begin);
    const uint64_t next = r.pages[page].next.load(kRelaxed);
    if (begin < r.page_len || next == 0) return;
    const uint64_t order = r.pages[page].order.load(kRelaxed);
    page = r.alive(next) != kNoPage ? r.alive(next) : oldest_page(r, lane_slot);
    // A link that leads nowhere in the middle of a lane comes from a damaged save only: the walk would go round.
    if (page != kNoPage && r.pages[page].order.load(kRelaxed) <= order) return;
    begin = 0;
  }
}

// Publishes the complete items of one index: rows of the lane from its cursor up to `stop`, counted from the lane's
// first row.
void publish_up_to(Held& held, uint32_t index, uint32_t lane_slot, int64_t stop) {
  const Region& r = held.region;
  const bool is_decided = r.header->indexes[index].sequence.is_set();
  const auto range = is_decided ? decide_range : has_condition(r, index) ? publish_passing : publish_range;
  const auto take = [&](uint64_t page, uint32_t begin, uint32_t end) { range(held, index, page, begin, end); };
  const auto done = [&](uint64_t page, uint32_t end) {
    r.cursor(index, lane_slot)
        .store(r.place_of(r.ref_of(page, r.words[page].load(kRelaxed)), end), std::memory_order_release);
  };
  walk_from_cursor(r, index, lane_slot, stop, take, done);
}

void mark_tail(Held& held, uint64_t page, uint32_t offset) {
  held.region.set_tail(page, offset);
  RELIVE_FAIL_POINT(commit_tail_bit);
}

void commit_tail(Held& held, uint64_t page, uint32_t offset) {
  Region& r = held.region;
  mark_tail(held, page, offset);
  Range range = range_of(r, page);
  range.step_end = offset + 1;
  r.pages[page].range.store(range.pack(), std::memory_order_release);
  RELIVE_FAIL_POINT(commit_tail_range);
}

// For a page that was opened for the end of an episode, when that end did not come (the write was refused afterwards):
// the first rows of the page reach back after all. No item of the page was published yet.
void take_history_back(Held& held, uint64_t page) {
  Region& r = held.region;
  if ((r.pages[page].flags.load(kRelaxed) & kHistoryFree) == 0) return;
  r.pages[page].flags.store(0, kRelaxed);
  const int64_t first_there = first_row_there(r, page);
  for (const uint32_t i : r.row_indexes())
    if (first_there + r.shape(i).before > 0) end_items(held, i, page, 0, first_there + r.shape(i).before);
}

bool is_open(const Region& r, uint64_t page) {
  return Region::state_of(r.words[page].load(kRelaxed)) == PageState::kOpen;
}

// Stores the lane's number of steps, for the page that it opens next, and in the page ahead (rule S4).
void count_on(Held& held, Lane& lane, uint64_t page) {
  const Region& r = held.region;
  if (!counts_steps(r)) return;
  lane.num_steps = steps_before(r, page, r.page_len, lane.uid.load(kRelaxed));
  const uint64_t ahead = r.alive(lane.ahead.load(kRelaxed));
  if (ahead != kNoPage && RELIVE_RULE(S4_count)) r.pages[ahead].first_step = lane.num_steps;
  RELIVE_FAIL_POINT(commit_counted);
}

// Closes a full page. The page opened ahead, if any, takes its place.
void advance_page(Held& held, Lane& lane, uint64_t page) {
  count_on(held, lane, page);
  if (is_open(held.region, page)) close_page(held, page);
  RELIVE_FAIL_POINT(commit_closed);
  const uint64_t ahead = lane.ahead.load(kRelaxed);
  if (ahead == 0) return;
  lane.open.store(ahead, std::memory_order_release);
  RELIVE_FAIL_POINT(commit_next_page);
  lane.ahead.store(0, std::memory_order_release);
}

// The lane's open page; kNoPage if there is none. If a process died between the end of a page and the advance, this
// call advances.
uint64_t current_page(Held& held, Lane& lane) {
  const Region& r = held.region;
  const uint64_t page = r.alive(lane.open.load(kRelaxed));
  const uint64_t ahead = r.alive(lane.ahead.load(kRelaxed));
  if (page == kNoPage || ahead == kNoPage || range_of(r, page).step_end < r.page_len) return page;
  if (ahead != page) {
    RELIVE_FAIL_POINT(sweep_page_end);
    advance_page(held, lane, page);
  } else {
    lane.ahead.store(0, std::memory_order_release);  // a process died between the two stores of advance_page()
  }
  return ahead;
}

// The lane's last row if it is a step; kNoPage if it is a tail or was evicted.
uint64_t last_row(const Region& r, uint64_t page, uint32_t* offset) {
  uint32_t step_end = range_of(r, page).step_end;
  if (step_end == 0) {
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    if (page == kNoPage) return kNoPage;
    step_end = range_of(r, page).step_end;
  }
  if (step_end == 0 || step_end - 1 < range_of(r, page).step_begin || r.is_tail(page, step_end - 1)) return kNoPage;
  *offset = step_end - 1;
  return page;
}

// Whether the rows tell that the lane's last episode has ended: a tail follows, or the last row has the mark of an end.
// A process that died between the two had already written the tail's cell, so the cell can become the tail.
bool has_ended(const Region& r, uint64_t page) {
  uint32_t offset = 0;
  const uint64_t last = last_row(r, page, &offset);
  if (last == kNoPage) return true;  // a tail, or the row was evicted
  return (r.head_of(r.slot_of(last, offset)).load(kRelaxed) & (kTerminatedBit | kTruncatedBit)) != 0;
}

// Handles an episode that the lane's end cuts off (rule S5), before any store that looks like an end of it.
// becomes_tail: the lane's last row will become a tail.
void drop_unfinished(Held& held, uint32_t lane_slot, uint64_t page, bool becomes_tail) {
  const Region& r = held.region;
  uint32_t offset = 0;
  const uint64_t last = last_row(r, page, &offset);
  const uint64_t coming_tail = becomes_tail && last != kNoPage ? r.slot_of(last, offset) : kNoSlot;
  const int64_t num_rows = static_cast<int64_t>(r.pages[page].first_t) + range_of(r, page).step_end;
  for (const uint32_t i : r.row_indexes()) {
    if (r.header->indexes[i].sequence.only_ended == 0) continue;
    const auto take = [&](uint64_t at, uint32_t begin, uint32_t end) {
      drop_range(held, i, at, begin, end, coming_tail);
    };
    walk_from_cursor(r, i, lane_slot, num_rows, take, [](uint64_t, uint32_t) {});
  }
}

// The last row of a lane without a frozen cell becomes the bootstrap state of the rows before it.
void last_row_becomes_tail(Held& held, uint64_t page) {
  Region& r = held.region;
  uint32_t offset = 0;
  page = last_row(r, page, &offset);
  if (page == kNoPage) return;
  const Living gone = count_living(r, page, offset, offset + 1);
  change_rows(held, page, [&] {  // the image of a page has no start cell of a tail
    r.set_tail(page, offset);
    RELIVE_FAIL_POINT(commit_tail_bit);
  });
  for (const uint32_t i : r.row_indexes()) Leaves::retire(held, i, r.slot_of(page, offset), kStateEnded);
  r.pages[page].live -= gone.pairs;
  note_loss(held, page);
  held.subtract(r.header->live_steps, 1);
  held.subtract(r.header->removed_steps, gone.removed_steps);
}

// Without state columns a mark in its last row ends a lane: no window waits for a row after it.
void mark_last_row(Held& held, uint64_t page) {
  Region& r = held.region;
  uint32_t offset = 0;
  page = last_row(r, page, &offset);
  if (page == kNoPage) return;
  const uint64_t slot = r.slot_of(page, offset);
  if ((r.head_of(slot).load(kRelaxed) & kTerminatedBit) == 0)
    change_rows(held, page, [&] { r.head_of(slot).fetch_or(kTruncatedBit); });
  RELIVE_FAIL_POINT(close_mark);
}

// Stores the mark that ends a lane. With state columns a row becomes a tail: the frozen cell, else the cell after a row
// with the mark of an end, else the last row itself. Without state columns the last row is marked.
void mark_lane_end(Held& held, uint32_t lane_slot, uint64_t page) {
  const Region& r = held.region;
  const uint32_t step_end = range_of(r, page).step_end;
  const bool has_state = r.geometry->has_state != 0;
  uint32_t offset = 0;
  const bool is_open = last_row(r, page, &offset) != kNoPage;  // false: a tail is there already
  const bool ended = has_ended(r, page);
  const bool has_cell = is_seam(r, r.lanes[lane_slot], page, step_end) || (is_open && ended && step_end < r.page_len);
  if (!ended && RELIVE_RULE(S5_cut)) drop_unfinished(held, lane_slot, page, has_state && !has_cell);
  if (!ended && RELIVE_RULE(Y4_cut)) pass_by_groups(held, lane_slot);
  if (!has_state) return mark_last_row(held, page);
  has_cell ? commit_tail(held, page, step_end) : last_row_becomes_tail(held, page);
}

// Handles a page of a lane that ends: keeps the page if it has rows, frees it otherwise.
void give_up_page(Held& held, uint64_t ref) {
  const Region& r = held.region;
  const uint64_t page = r.alive(ref);
  if (page == kNoPage) return;
  const Range range = range_of(r, page);
  const bool was_open = is_open(r, page);
  if (was_open) close_page(held, page);
  RELIVE_FAIL_POINT(close_page);
  if (was_open && range.step_begin == range.step_end) free_empty_page(held, page);
}

// Whether the windows of an index wait for rows of the next episode.
bool crosses(const Region& r, uint32_t index) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  return sequence.is_set() && sequence.crosses();
}

// Whether the next lane of the slot can continue in this page of an ending lane: the page is OPEN, has rows, and has
// room for more.
bool is_worth_parking(const Region& r, uint64_t page) {
  const Range range = range_of(r, page);
  return is_open(r, page) && range.step_begin < range.step_end && range.step_end < r.page_len;
}

}  // namespace

bool is_seam(const Region& r, const Lane& lane, uint64_t page, uint32_t offset) {
  const uint64_t seam = lane.seam.load(kRelaxed);
  if (seam == 0 || offset >= r.page_len) return false;
  return seam == static_cast<uint64_t>(r.key_of(r.slot_of(page, offset), r.words[page].load(kRelaxed)));
}

void publish_lane(Held& held, uint32_t lane_slot, Until until) {
  const Region& r = held.region;
  const Lane& lane = r.lanes[lane_slot];
  const uint64_t page = r.alive(lane.open.load(kRelaxed));
  if (page == kNoPage) return;
  const uint32_t step_end = range_of(r, page).step_end;
  const int64_t num_rows = static_cast<int64_t>(r.pages[page].first_t) + step_end;
  const bool has_seam = r.geometry->has_state != 0 && is_seam(r, lane, page, step_end);
  for (const uint32_t i : r.row_indexes()) {
    const bool goes_on = until == Until::kNow || (until == Until::kEpisodeEnd && crosses(r, i));
    publish_up_to(held, i, lane_slot, goes_on ? num_decided(r, i, lane_slot, num_rows, has_seam) : num_rows);
  }
  if (until != Until::kNow) join_groups(held, lane_slot);
}

bool make_room(Held& held, uint64_t count) {
  const Region& r = held.region;
  const uint64_t wanted = r.header->live_steps.load(kRelaxed) + count;
  return wanted <= r.geometry->capacity || evict_for_room(held, wanted - r.geometry->capacity);
}

void commit_run(Held& held, const StepRun& run) {
  Region& r = held.region;
  Lane& lane = r.lanes[run.lane_slot];
  Header& h = *r.header;
  const uint64_t page = r.ref_page(lane.open.load(kRelaxed));
  RELIVE_FAIL_POINT(commit_begin);
  make_room(held, run.count);
  RELIVE_FAIL_POINT(commit_evicted);

  PageRecord& record = r.pages[page];
  const uint32_t end = run.first + run.count;
  const bool has_tail = run.ends && r.geometry->has_state != 0;
  const bool tail_here = has_tail && end < r.page_len;
  if (tail_here) mark_tail(held, page, end);
  Range range = range_of(r, page);
  range.step_end = end + (tail_here ? 1 : 0);
  record.range.store(range.pack(), std::memory_order_release);
  RELIVE_FAIL_POINT(commit_range);
  held.add(h.live_steps, run.count);
  held.add(h.counters.appended, run.count);
  for (const uint32_t i : r.row_indexes()) {
    if (knows_what_begins_nothing(r, i)) end_what_begins_nothing(held, i, page, run.first, end);
    const Leaves leaves(r, i);  // a leaf that ended before its row was committed is not counted
    for (uint32_t offset = run.first; offset < end; ++offset)
      record.live += leaves.has_life(leaves.state(r.slot_of(page, offset))) ? 1 : 0;
  }

  const uint64_t ahead = r.alive(lane.ahead.load(kRelaxed));
  if ((run.has_seam && !run.ends) || (has_tail && !tail_here)) {
    const bool on_next = end == r.page_len;
    const uint64_t seam_page = on_next ? ahead : page;
    const uint64_t word = r.words[seam_page].load(kRelaxed);
    lane.seam.store(static_cast<uint64_t>(r.key_of(r.slot_of(seam_page, on_next ? 0 : end), word)),
                    std::memory_order_release);
    RELIVE_FAIL_POINT(commit_seam);
  }
  if (range.step_end == r.page_len) {
    if (ahead != kNoPage && !run.ends) take_history_back(held, ahead);
    advance_page(held, lane, page);
  }
  if (has_tail && !tail_here) commit_tail(held, ahead, 0);
  publish_lane(held, run.lane_slot, run.ends ? Until::kEpisodeEnd : Until::kNow);
}

void open_lane(Held& held, uint32_t lane_slot, uint32_t participant) {
  Region& r = held.region;
  Lane& lane = r.lanes[lane_slot];
  uint64_t page = parked_page(r, lane_slot);
  if (!RELIVE_RULE(E5_open) && lane.open.load(kRelaxed) != 0) page = r.ref_page(lane.open.load(kRelaxed));
  if (page != kNoPage && !can_go_on(r, page)) {
    give_up_page(held, lane.open.load(kRelaxed));
    page = kNoPage;
  }
  lane.owner.store(participant, kRelaxed);
  lane.uid.store(r.header->next_uid.fetch_add(1, kRelaxed), kRelaxed);
  lane.ahead.store(0, kRelaxed);
  lane.seam.store(0, kRelaxed);
  lane.num_steps = 0;
  lane.is_refused.store(0, kRelaxed);
  if (page == kNoPage) {
    lane.open.store(0, kRelaxed);
    for (const uint32_t i : r.row_indexes()) r.cursor(i, lane_slot).store(0, kRelaxed);
  } else {
    // A death between a tail's bit and its range left the bit of a row that does not exist. The bit must not reach this
    // lane's row.
    if (RELIVE_RULE(E5_tails)) r.clear_tails_from(page, range_of(r, page).step_end);
    RELIVE_FAIL_POINT(lane_tails);
    renew_age(held, page);
  }
  RELIVE_FAIL_POINT(lane_fields);
  lane.state.store(LaneState::kLive, std::memory_order_release);
  RELIVE_FAIL_POINT(lane_live);
}

void settle_lane(Held& held, uint32_t lane_slot) {
  Lane& lane = held.region.lanes[lane_slot];
  if (lane.state.load(kRelaxed) != LaneState::kLive) return;
  current_page(held, lane);
  publish_lane(held, lane_slot, Until::kNow);
  if (RELIVE_RULE(Y3_settle)) join_groups(held, lane_slot);
}

void cut_lane(Held& held, uint32_t lane_slot) {
  Region& r = held.region;
  Lane& lane = r.lanes[lane_slot];
  const uint64_t page = current_page(held, lane);
  if (page != kNoPage) mark_lane_end(held, lane_slot, page);
  RELIVE_FAIL_POINT(close_tail);
  if (page != kNoPage) publish_lane(held, lane_slot, Until::kLaneEnd);
  RELIVE_FAIL_POINT(close_published);
  const bool is_parked = page != kNoPage && is_worth_parking(r, page);
  if (!is_parked) give_up_page(held, lane.open.load(kRelaxed));
  if (lane.ahead.load(kRelaxed) != lane.open.load(kRelaxed)) give_up_page(held, lane.ahead.load(kRelaxed));
  lane.state.store(LaneState::kClosed, std::memory_order_release);
  RELIVE_FAIL_POINT(close_lane);
  if (!is_parked) lane.open.store(0, kRelaxed);
  lane.ahead.store(0, kRelaxed);
  lane.seam.store(0, kRelaxed);
  r.header->counters.cut_lanes.fetch_add(1, kRelaxed);
}

}  // namespace relive
