#include "relive/pages/pages.hpp"

#include <algorithm>
#include <cstring>

#include "relive/index/leaves.hpp"
#include "relive/pages/cells.hpp"
#include "relive/pages/crossing.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/parked.hpp"
#include "relive/pages/pins.hpp"
#include "relive/pages/records.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kTogether = 64;      // rows whose leaf states are tested in one pass
constexpr uint64_t kMostEvicted = 256;  // rows that pool pressure evicts in one critical section (rule C3)

// The page after (before) this one in its lane; kNoPage if there is none or it is gone.
uint64_t next_of(const Region& r, uint64_t page) { return r.alive(r.pages[page].next.load(kRelaxed)); }
uint64_t prev_of(const Region& r, uint64_t page) { return r.alive(r.pages[page].prev.load(kRelaxed)); }

bool reaches_back(const Region& r, uint64_t page) { return (r.pages[page].flags.load(kRelaxed) & kHistoryFree) == 0; }

PageState state_of(const Region& r, uint64_t page) { return Region::state_of(r.words[page].load(kRelaxed)); }

// Whether no writer owns the page; and whether, in addition, no pin names it, so that emptying it frees it.
bool is_used(const Region& r, uint64_t page) { return Region::is_used(r.words[page].load(kRelaxed)); }
bool is_nobodys(const Region& r, uint64_t page) {
  return state_of(r, page) == PageState::kClosed || is_parked(r, page);
}
bool may_go(const Region& r, uint64_t page) { return is_nobodys(r, page) && !is_pinned(r, page); }

// Ends items [begin, end) of one page, in blocks of rows: first the items that a condition kept out, then the others.
// The two kinds alternate unpredictably, so the code has no branch on the kind.
void end_on_page(Held& held, uint32_t index, uint64_t page, uint32_t begin, uint32_t end) {
  Region& r = held.region;
  const Leaves leaves(r, index);
  const uint32_t step_end = range_of(r, page).step_end;
  uint32_t offsets[kTogether];
  for (uint32_t offset = begin; offset < end;) {
    size_t count = 0;
    for (const uint32_t stop = std::min(end, offset + kTogether); offset < stop; ++offset) {
      if (offset < step_end && r.is_tail(page, offset)) continue;
      offsets[count] = offset;
      count += leaves.end_kept_out(r.slot_of(page, offset)) ? 0 : 1;
    }
    for (size_t k = 0; k < count; ++k) {
      const bool had_life = leaves.retire(held, r.slot_of(page, offsets[k]), kStateEnded);
      if (had_life && offsets[k] < step_end) r.pages[page].live -= 1;
    }
  }
  note_loss(held, page);
}

// The result of an eviction. If is_done is false, the caller continues in another critical section (rule X7).
struct Evicted {
  uint64_t steps;
  bool is_done;
};

// Evicts up to `count` steps of one page. One store of range is the commit. Every item that needs one of the rows ends
// in this critical section, before the page's generation can change (rule D3); explicit items end before that store
// (rule X3).
Evicted evict_from_page(Held& held, uint64_t page, uint64_t count) {
  Region& r = held.region;
  PageRecord& record = r.pages[page];
  Range range = range_of(r, page);
  const uint32_t begin = range.step_begin;
  const bool has_records = r.has_records();
  uint64_t evicted = 0;
  bool is_done = true;
  while (range.step_begin < range.step_end && (evicted < count || r.is_tail(page, range.step_begin))) {
    is_done = !has_records || end_records_at(held, r.slot_of(page, range.step_begin));
    if (!is_done) break;
    evicted += r.is_tail(page, range.step_begin) ? 0 : 1;
    ++range.step_begin;
  }
  if (range.step_begin > begin) {
    const Living gone = count_living(r, page, begin, range.step_begin);
    record.range.store(range.pack(), std::memory_order_release);
    RELIVE_FAIL_POINT(evict_range);
    if (begin == 0) {
      if (const uint64_t prev = prev_of(r, page); prev != kNoPage) end_items_at_end(held, prev);
    }
    for (const uint32_t i : r.row_indexes()) {
      const int64_t before = r.shape(i).before;  // items that reach below `begin` ended with the rows there
      end_items(held, i, page, begin == 0 ? 0 : begin + before, range.step_begin + before);
    }
    held.subtract(r.header->live_steps, evicted);
    held.subtract(r.header->removed_steps, gone.removed_steps);
    held.add(r.header->counters.evicted, evicted);
    RELIVE_FAIL_POINT(evict_counts);
  }
  note_loss(held, page);
  if (range.step_begin == range.step_end) {
    if (is_nobodys(r, page)) {
      // The kept list has CLOSED pages only.
      if (state_of(r, page) == PageState::kOpen && must_stay(r, page)) close_page(held, page);
      RELIVE_FAIL_POINT(free_begin);
      free_or_keep(held, page);
    } else {
      renew_age(held, page);  // never evicts a slow lane under its owner
    }
  }
  return {evicted, is_done};
}

// Whether items that were drawn for the last time may still be given back, or are still to be read from the page (rule
// G7).
bool is_claimed(const Region& r, uint64_t page) { return r.pages[page].undecided != 0 && RELIVE_RULE(G7_undecided); }

// Whether an item of a page before this one may run into it: a published or pending item, or one that was drawn and is
// not read yet.
bool is_reached_from_before(const Region& r, uint32_t index, uint64_t page) {
  const Leaves leaves(r, index);
  int64_t left = r.shape(index).after();
  for (uint64_t prev = prev_of(r, page); left > 0 && prev != kNoPage; prev = prev_of(r, prev), left -= r.page_len) {
    if (is_claimed(r, prev)) return true;
    const Range range = range_of(r, prev);
    const uint32_t first = r.page_len - static_cast<uint32_t>(std::min<int64_t>(left, r.page_len));
    for (uint32_t offset = std::max(first, range.step_begin); offset < range.step_end; ++offset)
      if (!r.is_tail(prev, offset) && leaves.has_life(leaves.state(r.slot_of(prev, offset)))) return true;
  }
  return false;
}

// Whether an item of a page after this one may reach back into it: a published or pending item, one that was drawn and
// is not read yet, or one of a row that is not written yet.
bool is_reached_from_behind(const Region& r, uint32_t index, uint64_t page) {
  const Leaves leaves(r, index);
  int64_t left = r.shape(index).before;
  for (uint64_t next = page; left > 0; left -= r.page_len) {
    const uint64_t last = next;
    next = next_of(r, next);
    if (next == kNoPage) return is_named_by_its_lane(r, last) && r.pages[last].next.load(kRelaxed) == 0;
    if (!reaches_back(r, next)) return false;
    if (is_claimed(r, next)) return true;
    const bool goes_on = is_named_by_its_lane(r, next);
    const uint32_t end = static_cast<uint32_t>(std::min<int64_t>(left, r.page_len));
    const uint32_t step_end = range_of(r, next).step_end;
    for (uint32_t offset = range_of(r, next).step_begin; offset < end; ++offset) {
      if (offset < step_end && r.is_tail(next, offset)) continue;
      if (offset >= step_end && !goes_on) break;
      if (leaves.has_life(leaves.state(r.slot_of(next, offset)))) return true;
    }
  }
  return false;
}

}  // namespace

// An OPEN page takes the page opened ahead of it along. If that page were older, its rows would be evicted while
// windows of this page still reach them. The later page is stamped first: a death between the stores leaves it the
// younger one.
void renew_age(Held& held, uint64_t page) {
  Region& r = held.region;
  const uint64_t ahead = state_of(r, page) == PageState::kOpen ? next_of(r, page) : kNoPage;
  const uint64_t order = r.header->next_order.fetch_add(2, kRelaxed);
  if (ahead != kNoPage) r.pages[ahead].order.store(order + 1, kRelaxed);
  r.pages[page].order.store(order, kRelaxed);
  ring_remove(held, static_cast<uint32_t>(page));
  ring_push_back(held, static_cast<uint32_t>(page));
  if (ahead == kNoPage) return;
  ring_remove(held, static_cast<uint32_t>(ahead));
  ring_push_back(held, static_cast<uint32_t>(ahead));
}

void free_page(Held& held, uint64_t page) {
  Region& r = held.region;
  RELIVE_FAIL_POINT(free_masked);
  const uint64_t word = r.words[page].load(kRelaxed);
  const uint64_t freed = r.freed_word(word);
  const uint64_t ref = r.ref_of(page, word);
  r.words[page].store(freed, std::memory_order_release);
  RELIVE_FAIL_POINT(free_word);
  // Nothing of the page may be written before its new generation is visible (rule D3). A release store alone does not
  // order the stores after it.
  if (RELIVE_RULE(D3_fence)) release_fence();
  RELIVE_FAIL_POINT(free_fence);
  for (const uint32_t i : r.row_indexes()) {
    std::atomic<uint64_t>& cursor = r.cursor(i, r.pages[page].lane_slot.load(kRelaxed));
    if (r.place_ref(cursor.load(kRelaxed)) == ref)
      cursor.store(r.place_of(r.pages[page].next.load(kRelaxed), 0), std::memory_order_release);
  }
  const uint64_t free = r.header->num_free_frames.load(kRelaxed);
  r.free_frames[free].store(r.frames[page].load(kRelaxed), kRelaxed);
  r.header->num_free_frames.store(free + 1, kRelaxed);
  if (r.bulk) release_bulk(held, page);
  if (r.cells) release_cells(held, page);
  r.pages[page].live = r.pages[page].undecided = 0;
  if (r.chooses_pages()) rank_page(held, page);
  if (Region::state_of(freed) != PageState::kRetired) free_push_back(held, static_cast<uint32_t>(page));
  RELIVE_FAIL_POINT(free_listed);
}

int64_t first_row_there_before(const Region& r, uint64_t prev_ref, bool history_free) {
  int64_t before = 0;  // rows between the page and the one read now
  while (true) {
    if (prev_ref == 0 || history_free || before >= r.geometry->history) return kAllThere;
    const uint64_t prev = r.alive(prev_ref);
    if (prev == kNoPage) return -before;
    before += r.page_len;
    const uint32_t step_begin = range_of(r, prev).step_begin;
    if (step_begin > 0) return int64_t{step_begin} - before;
    prev_ref = r.pages[prev].prev.load(kRelaxed);
    history_free = !reaches_back(r, prev);
  }
}

int64_t first_row_there(const Region& r, uint64_t page) {
  const uint32_t step_begin = range_of(r, page).step_begin;
  if (step_begin > 0) return step_begin;
  return first_row_there_before(r, r.pages[page].prev.load(kRelaxed), !reaches_back(r, page));
}

void end_items(Held& held, uint32_t index, uint64_t page, int64_t begin, int64_t end) {
  Region& r = held.region;
  const int64_t len = r.page_len;
  while (true) {
    if (begin < len && begin < end)
      end_on_page(held, index, page, static_cast<uint32_t>(std::max<int64_t>(begin, 0)),
                  static_cast<uint32_t>(std::clamp<int64_t>(end, 0, len)));
    if (end <= len || !RELIVE_RULE(D3_reach)) return;
    page = next_of(r, page);
    if (page == kNoPage || !reaches_back(r, page)) return;
    RELIVE_FAIL_POINT(evict_carry);
    begin = std::max<int64_t>(begin - len, 0);
    end -= len;
  }
}

void end_items_at_end(Held& held, uint64_t page) {
  Region& r = held.region;
  if (!RELIVE_RULE(D3_ahead)) return;
  for (const uint32_t i : r.row_indexes()) {
    int64_t left = r.shape(i).after();
    for (uint64_t at = page; left > 0 && at != kNoPage; at = prev_of(r, at), left -= r.page_len)
      end_on_page(held, i, at, r.page_len - static_cast<uint32_t>(std::min<int64_t>(left, r.page_len)), r.page_len);
  }
}

Living count_living(const Region& r, uint64_t page, uint32_t begin, uint32_t end) {
  Living living;
  for (uint32_t offset = begin; offset < end; ++offset) {
    if (r.is_tail(page, offset)) continue;
    bool is_removed = false;
    for (const uint32_t i : r.row_indexes()) {
      const Leaves leaves(r, i);
      const uint16_t state = leaves.state(r.slot_of(page, offset));
      living.pairs += leaves.has_life(state) ? 1 : 0;
      is_removed |= state == kStateRemoved;
    }
    living.steps += 1;
    living.removed_steps += is_removed ? 1 : 0;
  }
  return living;
}

OpenResult open_page(Held& held, uint32_t lane_slot, bool ahead, bool history_free, uint64_t* ref) {
  Region& r = held.region;
  Header& h = *r.header;
  if (h.num_free_pages.load(kRelaxed) == 0) return OpenResult::kNoPage;
  const uint64_t free_frames = h.num_free_frames.load(kRelaxed);
  if (free_frames == 0) return OpenResult::kNoFrame;
  const uint32_t page = h.free_head.load(kRelaxed);
  if (r.bulk && !take_bulk(held, page)) return OpenResult::kNoBulk;
  PageRecord& record = r.pages[page];
  h.free_head.store(record.free_next, kRelaxed);
  h.num_free_pages.fetch_sub(1, kRelaxed);
  h.num_free_frames.store(free_frames - 1, kRelaxed);
  r.frames[page].store(r.free_frames[free_frames - 1].load(kRelaxed), std::memory_order_release);
  RELIVE_FAIL_POINT(open_popped);

  Lane& lane = r.lanes[lane_slot];
  history_free = history_free && !crosses_ends(r);  // windows that cross ends reach back over them
  const uint64_t prev_ref = lane.open.load(kRelaxed);
  const uint64_t prev = r.alive(prev_ref);
  const int64_t first_there = first_row_there_before(r, prev_ref, history_free);
  record.range.store(Range{0, 0}.pack(), kRelaxed);
  for (const uint32_t i : r.row_indexes()) {
    const int64_t num_ended = std::clamp<int64_t>(first_there + r.shape(i).before, 0, r.page_len);
    Leaves::open(held, i, r.slot_of(page, 0), r.page_len, static_cast<uint32_t>(num_ended));
    // If the page before was freed early, no item on earlier pages can become complete: publication continues here.
    if (prev == kNoPage) r.cursor(i, lane_slot).store(0, kRelaxed);
  }
  for (uint32_t word = 0; word < r.geometry->tail_words; ++word)
    r.tails[page * uint64_t{r.geometry->tail_words} + word].store(0, kRelaxed);
  record.prev.store(prev_ref, kRelaxed);
  record.next.store(0, kRelaxed);
  record.lane_uid.store(lane.uid.load(kRelaxed), kRelaxed);
  record.lane_slot.store(lane_slot, kRelaxed);
  record.first_t = prev != kNoPage ? r.pages[prev].first_t + r.page_len : 0;
  record.first_step = lane.num_steps;  // a page opened ahead gets its count when its lane advances to it
  record.flags.store(history_free ? kHistoryFree : 0, kRelaxed);
  record.live = record.undecided = 0;
  record.order.store(h.next_order.fetch_add(1, kRelaxed), kRelaxed);
  RELIVE_FAIL_POINT(open_fields);
  const uint64_t word = r.words[page].load(kRelaxed);
  const uint64_t opened = Region::generation_of(word) << kGenerationShift | static_cast<uint64_t>(PageState::kOpen);
  r.words[page].store(opened, std::memory_order_release);
  RELIVE_FAIL_POINT(open_word);
  *ref = r.ref_of(page, opened);
  if (prev != kNoPage) r.pages[prev].next.store(*ref, std::memory_order_release);
  RELIVE_FAIL_POINT(open_linked);
  (ahead ? lane.ahead : lane.open).store(*ref, std::memory_order_release);
  RELIVE_FAIL_POINT(open_lane);
  ring_push_back(held, page);
  RELIVE_FAIL_POINT(open_ring);
  return OpenResult::kOk;
}

void close_page(Held& held, uint64_t page) {
  Region& r = held.region;
  r.pages[page].ticket.store(r.header->next_ticket.fetch_add(1, kRelaxed), kRelaxed);
  const uint64_t word = r.words[page].load(kRelaxed);
  r.words[page].store((word & ~uint64_t{3}) | static_cast<uint64_t>(PageState::kClosed), std::memory_order_release);
  if (r.bulk) offer_for_spill(held, page);
  if (!r.chooses_pages()) return;
  rank_around(held, page);
  weigh_some(held);
}

namespace {

// The page whose rows are evicted next: the remover's choice. If the remover is Fifo or no page is CLOSED, the oldest
// page.
uint64_t next_page_to_go(Held& held) {
  const Region& r = held.region;
  const uint64_t chosen = r.chooses_pages() ? choose_page(held) : uint64_t{kNoPage};
  return chosen != kNoPage ? chosen : r.header->ring_head.load(kRelaxed);
}

// Counts the items of the first index that an eviction ended although the remover would have kept them.
class CrowdedOut final {
 public:
  explicit CrowdedOut(const Region& r) : r_(r), num_live_(num_live()) {}
  ~CrowdedOut() {
    if (!r_.chooses_pages() || num_live() >= num_live_) return;
    std::atomic<uint64_t>& count = r_.header->index_state[0].crowded_out();
    count.store(count.load(kRelaxed) + static_cast<uint64_t>(num_live_ - num_live()), kRelaxed);
  }
  CrowdedOut(const CrowdedOut&) = delete;
  CrowdedOut& operator=(const CrowdedOut&) = delete;

 private:
  int64_t num_live() const { return r_.chooses_pages() ? Leaves(r_, 0).num_live() : 0; }
  const Region& r_;
  const int64_t num_live_;
};

}  // namespace

bool evict_for_room(Held& held, uint64_t count) {
  const CrowdedOut counted(held.region);
  return evict_steps(held, count);
}

bool evict_steps(Held& held, uint64_t count) {
  const Region& r = held.region;
  while (count > 0 && r.header->live_steps.load(kRelaxed) > 0) {
    const uint64_t page = next_page_to_go(held);
    if (page == kNoPage) return true;
    const Evicted evicted = evict_from_page(held, page, count);
    if (!evicted.is_done) return false;
    count -= evicted.steps;
  }
  return true;
}

bool relieve_pressure(Held& held) {
  const Region& r = held.region;
  if (is_held(r)) return false;  // its page would only be kept
  const CrowdedOut counted(r);
  if (const uint64_t page = next_page_to_go(held); r.chooses_pages() && page != kNoPage && may_go(r, page)) {
    (void)evict_from_page(held, page, kMostEvicted);
    r.header->counters.pool_pressure.fetch_add(is_used(r, page) ? 0 : 1, kRelaxed);
    return true;
  }
  for (uint32_t page = r.header->ring_head.load(kRelaxed); page != kNoPage; page = r.pages[page].ring_next) {
    if (!may_go(r, page)) continue;
    const uint64_t word = r.words[page].load(kRelaxed);
    (void)evict_from_page(held, page, kMostEvicted);
    const bool is_free = Region::generation_of(r.words[page].load(kRelaxed)) != Region::generation_of(word);
    if (is_free) r.header->counters.pool_pressure.fetch_add(1, kRelaxed);
    return true;
  }
  return false;
}

void note_claim(Held& held, uint64_t page) { held.region.pages[page].undecided += 1; }

void forget_claim(Held& held, uint64_t page) {
  uint32_t& undecided = held.region.pages[page].undecided;
  if (undecided > 0) undecided -= 1;
}

void free_if_lifeless(Held& held, uint64_t page) {
  const Region& r = held.region;
  if (r.has_records()) return;  // explicit items may still be made of a step without items
  if (r.pages[page].live != 0 || !may_go(r, page)) return;
  if (range_of(r, page).step_begin == range_of(r, page).step_end) return;  // the page is on the kept list
  if (is_claimed(r, page)) return;                                         // a draw may still give the last use back
  // No row follows a parked page, because its lane has ended.
  const bool has_rows_behind = state_of(r, page) == PageState::kClosed;
  for (const uint32_t i : r.row_indexes())
    if (is_reached_from_before(r, i, page) || (has_rows_behind && is_reached_from_behind(r, i, page))) return;
  evict_from_page(held, page, ~uint64_t{0});
  r.header->counters.early_freed.fetch_add(1, kRelaxed);
}

void unlink_empty_page(Held& held, uint64_t page) {
  Region& r = held.region;
  if (range_of(r, page).step_end > 0) return;
  const uint64_t prev = prev_of(r, page);
  const uint64_t ref = r.ref_of(page, r.words[page].load(kRelaxed));
  if (prev != kNoPage && r.pages[prev].next.load(kRelaxed) == ref)
    r.pages[prev].next.store(0, std::memory_order_release);
  RELIVE_FAIL_POINT(free_unlinked);
}

void free_empty_page(Held& held, uint64_t page) {
  unlink_empty_page(held, page);
  free_or_keep(held, page);
}

bool move_page(Held& held, uint64_t page) {
  Region& r = held.region;
  Header& h = *r.header;
  const uint64_t word = r.words[page].load(kRelaxed);
  const uint64_t free_frames = h.num_free_frames.load(kRelaxed);
  if (Region::state_of(word) != PageState::kClosed || free_frames == 0 || must_stay(r, page)) return false;
  const uint32_t from = r.frames[page].load(kRelaxed);
  const uint32_t to = r.free_frames[free_frames - 1].load(kRelaxed);
  std::memcpy(r.frame_base(to), r.frame_base(from), r.geometry->frame_bytes);
  RELIVE_FAIL_POINT(move_copied);
  r.frames[page].store(to, std::memory_order_release);
  RELIVE_FAIL_POINT(move_frame);
  if (RELIVE_RULE(D6_moves)) r.words[page].store(Region::moved_word(word), std::memory_order_release);
  RELIVE_FAIL_POINT(move_word);
  release_fence();
  r.free_frames[free_frames - 1].store(from, kRelaxed);
  return true;
}

}  // namespace relive
