#include "relive/pages/publish.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "relive/words/power.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The pages of a lane that may hold unpublished items, oldest first: at most the open page and two before it.
struct Chain {
  uint64_t pages[4];
  uint32_t count = 0;
};

bool has_unpublished(const Region& r, uint64_t page) {
  const uint32_t step_end = Range::unpack(r.pages[page].range.load(kRelaxed)).step_end;
  for (uint32_t i = 0; i < r.num_indexes; ++i)
    if (r.item_end(page, i) < step_end) return true;
  return false;
}

Chain unpublished_chain(const Region& r, const Lane& lane, bool only_open_page) {
  Chain reversed;
  uint64_t page = r.alive(lane.open.load(kRelaxed));
  if (only_open_page && page != kNoPage) {
    reversed.pages[reversed.count++] = page;
    return reversed;
  }
  while (page != kNoPage && reversed.count < 4) {
    reversed.pages[reversed.count++] = page;
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    if (page != kNoPage && !has_unpublished(r, page)) break;
  }
  Chain chain;
  while (reversed.count > 0) chain.pages[chain.count++] = reversed.pages[--reversed.count];
  return chain;
}

// The mass with which a complete item enters the index, or false where its priority has still to come.
bool initial_mass(Region& r, uint32_t index, uint64_t page, uint32_t offset, double* mass) {
  const IndexConfig& config = r.header->indexes[index];
  *mass = 1.0;
  if (config.sampling == Sampling::kUniform) return true;
  const float given = std::bit_cast<float>(r.marks[r.slot_of(page, offset)].pending_priority.load(kRelaxed));
  if (!std::isnan(given)) {
    *mass = mass_of(config, given);
    return true;
  }
  if (config.initial == Initial::kGiven) return false;
  *mass = config.initial == Initial::kMax ? r.header->index_state[index].max_mass.load(kRelaxed)
                                          : mass_of(config, static_cast<float>(config.initial_number));
  return true;
}

void publish_range(Region& r, uint32_t index, uint64_t page, uint32_t stop, Dirty& dirty) {
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const uint32_t old_end = r.item_end(page, index);
  const uint32_t begin = RELIVE_RULE(D2d_item_begin) ? std::max(old_end, range.item_begin) : old_end;
  if (stop <= old_end) return;
  int64_t published = 0;
  for (uint32_t offset = begin; offset < stop; ++offset) {
    if (r.is_tail(page, offset)) continue;
    const uint64_t slot = r.slot_of(page, offset);
    if (r.times[index][slot].load(kRelaxed) == kTimesRemoved) continue;  // deleted while it was pending
    double mass = 0.0;
    if (!initial_mass(r, index, page, offset, &mass)) {
      r.times[index][slot].store(kTimesAwaiting, kRelaxed);
      continue;
    }
    r.trees[index].set_leaf(slot, mass);
    dirty.add(r, index, slot);
    ++published;
    RELIVE_FAIL_POINT(publish_leaf);
  }
  r.header->counters.skipped_items.fetch_add(std::min(begin, stop) - std::min(old_end, stop), kRelaxed);
  r.set_item_end(page, index, stop);
  RELIVE_FAIL_POINT(publish_item_end);
  IndexState& state = r.header->index_state[index];
  state.inserted.store(state.inserted.load(kRelaxed) + published, kRelaxed);
  state.live_items.fetch_add(published, kRelaxed);
  RELIVE_FAIL_POINT(publish_counted);
}

void commit_tail(Region& r, uint64_t page, uint32_t offset) {
  r.set_tail(page, offset);
  RELIVE_FAIL_POINT(commit_tail_bit);
  Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  range.step_end = offset + 1;
  r.pages[page].range.store(range.pack(), std::memory_order_release);
  RELIVE_FAIL_POINT(commit_tail_range);
}

// A page opened for the end of an episode that did not come (the write was refused after that): its first rows reach
// back after all. Nothing was published in it yet.
void take_history_back(Region& r, uint64_t page, uint64_t next) {
  if ((r.pages[next].flags.load(kRelaxed) & kHistoryFree) == 0) return;
  r.pages[next].flags.store(0, kRelaxed);
  const uint32_t reach = Range::unpack(r.pages[page].range.load(kRelaxed)).item_begin;
  Range range = Range::unpack(r.pages[next].range.load(kRelaxed));
  range.item_begin = std::max(range.item_begin, reach > r.page_len ? reach - r.page_len : 0);
  r.pages[next].range.store(range.pack(), std::memory_order_release);
}

// The page is full: it closes, and the page opened ahead of need (if any) takes its place.
void turn_page(Region& r, Lane& lane, uint64_t page) {
  close_page(r, page);
  RELIVE_FAIL_POINT(commit_closed);
  const uint64_t ahead = lane.ahead.load(kRelaxed);
  if (ahead == 0) return;
  lane.open.store(ahead, std::memory_order_release);
  RELIVE_FAIL_POINT(commit_next_page);
  lane.ahead.store(0, std::memory_order_release);
}

// The last row of a lane without a frozen cell becomes the bootstrap state of the rows before it.
void last_row_becomes_tail(Region& r, uint64_t page) {
  uint32_t step_end = Range::unpack(r.pages[page].range.load(kRelaxed)).step_end;
  if (step_end == 0) {
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    if (page == kNoPage) return;
    step_end = Range::unpack(r.pages[page].range.load(kRelaxed)).step_end;
  }
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  if (step_end == 0 || step_end - 1 < range.step_begin || r.is_tail(page, step_end - 1)) return;
  const uint64_t slot = r.slot_of(page, step_end - 1);
  bool is_removed = false;
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const uint16_t times = r.times[i][slot].load(kRelaxed);
    is_removed |= times == kTimesRemoved;
    r.pages[page].live -= times == kTimesAwaiting || r.is_drawable(i, times) ? 1 : 0;
  }
  r.set_tail(page, step_end - 1);
  r.header->live_steps.fetch_sub(1, kRelaxed);
  if (is_removed) r.header->removed_steps.fetch_sub(1, kRelaxed);
}

// A page of a lane that goes: kept as it is if it holds rows, else given back.
void give_up_page(Region& r, uint64_t ref) {
  const uint64_t page = r.alive(ref);
  if (page == kNoPage) return;
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const bool is_open = Region::state_of(r.words[page].load(kRelaxed)) == PageState::kOpen;
  if (is_open) close_page(r, page);
  RELIVE_FAIL_POINT(close_page);
  if (is_open && range.step_begin == range.step_end && !is_pinned(r, page)) free_empty_page(r, page);
}

}  // namespace

double mass_of(const IndexConfig& index, float priority) {
  double mass;
  masses_of(index, &priority, 1, &mass);
  return mass;
}

void masses_of(const IndexConfig& index, const float* priorities, size_t count, double* masses) {
  if (index.sampling == Sampling::kUniform) {
    std::fill(masses, masses + count, 1.0);
  } else if (index.priority_exponent == 1.0) {
    std::copy(priorities, priorities + count, masses);
  } else {
    powers_of(priorities, count, 1.0, index.priority_exponent, masses);
  }
}

bool is_seam(const Region& r, const Lane& lane, uint64_t page, uint32_t offset) {
  const uint64_t seam = lane.seam.load(kRelaxed);
  if (seam == 0 || offset >= r.page_len) return false;
  return seam == static_cast<uint64_t>(r.key_of(r.slot_of(page, offset), r.words[page].load(kRelaxed)));
}

void publish_item(Region& r, uint32_t index, uint64_t slot, double mass, Dirty& dirty) {
  r.trees[index].set_leaf(slot, mass);
  RELIVE_FAIL_POINT(publish_leaf);
  r.times[index][slot].store(0, std::memory_order_release);
  dirty.add(r, index, slot);
  IndexState& state = r.header->index_state[index];
  state.inserted.store(state.inserted.load(kRelaxed) + 1, kRelaxed);
  state.live_items.fetch_add(1, kRelaxed);
}

void publish_lane(Region& r, uint32_t lane_slot, bool ended, bool only_open_page, Dirty& dirty) {
  const Lane& lane = r.lanes[lane_slot];
  const Chain chain = unpublished_chain(r, lane, only_open_page);
  if (chain.count == 0) return;
  const bool has_state = r.geometry->has_state != 0;
  const uint64_t last = chain.pages[chain.count - 1];
  const Range last_range = Range::unpack(r.pages[last].range.load(kRelaxed));
  const int64_t num_rows = static_cast<int64_t>(r.pages[last].first_t) + last_range.step_end;
  const bool has_seam = has_state && is_seam(r, lane, last, last_range.step_end);
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    // A window [x, x + n) is complete when the state cell of row x + n is written (or, without state, row x + n - 1).
    const int64_t n_step = r.header->indexes[i].n_step;
    const int64_t ready = has_state ? num_rows + (has_seam ? 1 : 0) - n_step : num_rows - n_step + 1;
    for (uint32_t c = 0; c < chain.count; ++c) {
      const uint64_t page = chain.pages[c];
      const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
      const int64_t limit = ended ? range.step_end : ready - static_cast<int64_t>(r.pages[page].first_t);
      const int64_t stop = std::min<int64_t>(range.step_end, limit);
      if (stop > 0) publish_range(r, i, page, static_cast<uint32_t>(stop), dirty);
    }
  }
}

void make_room(Region& r, uint64_t count, Dirty& dirty) {
  const uint64_t wanted = r.header->live_steps.load(kRelaxed) + count;
  if (wanted > r.geometry->capacity) evict_steps(r, wanted - r.geometry->capacity, dirty);
}

void commit_run(Region& r, const Run& run, Dirty& dirty) {
  Lane& lane = r.lanes[run.lane_slot];
  Header& h = *r.header;
  const uint64_t page = r.ref_page(lane.open.load(kRelaxed));
  RELIVE_FAIL_POINT(commit_begin);
  make_room(r, run.count, dirty);
  RELIVE_FAIL_POINT(commit_evicted);

  PageRecord& record = r.pages[page];
  const uint32_t end = run.first + run.count;
  const bool has_tail = run.ends && r.geometry->has_state != 0;
  const bool tail_here = has_tail && end < r.page_len;
  if (tail_here) {
    r.set_tail(page, end);
    RELIVE_FAIL_POINT(commit_tail_bit);
  }
  Range range = Range::unpack(record.range.load(kRelaxed));
  range.step_end = end + (tail_here ? 1 : 0);
  record.range.store(range.pack(), std::memory_order_release);
  RELIVE_FAIL_POINT(commit_range);
  h.live_steps.fetch_add(run.count, kRelaxed);
  h.counters.appended.fetch_add(run.count, kRelaxed);
  record.live += run.count * r.num_indexes;

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
    if (ahead != kNoPage && !run.ends) take_history_back(r, page, ahead);
    turn_page(r, lane, page);
  }
  if (has_tail && !tail_here) commit_tail(r, ahead, 0);
  // Items wait for n_step rows at most: behind that many rows of this very page nothing older can be unpublished.
  const bool only_open_page = run.first >= r.geometry->max_n_step && range.step_end < r.page_len;
  publish_lane(r, run.lane_slot, run.ends, only_open_page, dirty);
}

void cut_lane(Region& r, uint32_t lane_slot, Dirty& dirty) {
  Lane& lane = r.lanes[lane_slot];
  uint64_t page = r.alive(lane.open.load(kRelaxed));
  const uint64_t ahead = r.alive(lane.ahead.load(kRelaxed));
  if (page != kNoPage && ahead != kNoPage && ahead != page &&
      Range::unpack(r.pages[page].range.load(kRelaxed)).step_end == r.page_len) {
    lane.open.store(lane.ahead.load(kRelaxed), std::memory_order_release);  // died between the page's end and its turn
    page = ahead;
  }
  if (page != kNoPage && r.geometry->has_state != 0) {
    const uint32_t step_end = Range::unpack(r.pages[page].range.load(kRelaxed)).step_end;
    if (is_seam(r, lane, page, step_end)) {
      commit_tail(r, page, step_end);
    } else {
      last_row_becomes_tail(r, page);
    }
  }
  RELIVE_FAIL_POINT(close_tail);
  if (page != kNoPage) publish_lane(r, lane_slot, true, false, dirty);
  RELIVE_FAIL_POINT(close_published);
  give_up_page(r, lane.open.load(kRelaxed));
  if (lane.ahead.load(kRelaxed) != lane.open.load(kRelaxed)) give_up_page(r, lane.ahead.load(kRelaxed));
  lane.state.store(LaneState::kClosed, std::memory_order_release);
  RELIVE_FAIL_POINT(close_lane);
  lane.open.store(0, kRelaxed);
  lane.ahead.store(0, kRelaxed);
  lane.seam.store(0, kRelaxed);
  r.header->counters.cut_lanes.fetch_add(1, kRelaxed);
}

}  // namespace relive
