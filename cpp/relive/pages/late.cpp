#include "relive/pages/late.hpp"

#include <algorithm>
#include <bit>

#include "relive/index/leaves.hpp"
#include "relive/pages/crossing.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/group_weight.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/records.hpp"
#include "relive/words/predicate.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr uint32_t kLooksAnItem = 15;  // further rows that publishing an item counts for (rule C3)

uint32_t head_at(const Region& r, uint64_t page, uint32_t offset) {
  return load_head(r.page_base(page) + offset * r.geometry->record_stride);
}

// The steps of an item from its own on, whose late columns it waits for.
uint32_t late_spanned(const Region& r, uint32_t index) {
  return r.header->indexes[index].hindsight.is_set() && RELIVE_RULE(L7_own) ? 1 : r.shape(index).spanned;
}

// The rows before an item's own row whose step columns the item delivers: its burn-in. Only states are read from rows
// that stacks reach back over, so an item does not wait for the late columns of those rows. If windows cross ends, a
// tail may follow each row, which doubles the distance.
uint32_t late_before(const Region& r, uint32_t index) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  return sequence.burn_in * (sequence.crosses() && r.geometry->has_state != 0 ? 2 : 1);
}

// Publishes the unfilled items of rows [begin, end) of one page that have all late columns now. Returns how many can be
// drawn.
int64_t publish_on_page(Held& held, uint32_t index, uint64_t page, int64_t begin, int64_t end) {
  const Region& r = held.region;
  const Leaves leaves(r, index);
  const Range range = range_of(r, page);
  FilledRows filled(r, index);
  int64_t published = 0;
  const auto last = static_cast<uint32_t>(std::min<int64_t>(end, range.step_end));
  for (auto offset = static_cast<uint32_t>(std::max<int64_t>(begin, range.step_begin)); offset < last; ++offset) {
    const uint64_t slot = r.slot_of(page, offset);
    if (leaves.state(slot) != kStateUnfilled || !filled.has_all_of(page, offset)) continue;
    if (!passes_condition(r, index, slot) && RELIVE_RULE(Q1_condition)) {
      held.region.pages[page].live -= Leaves::retire(held, index, slot, kStateDropped) ? 1 : 0;
      Leaves::count_kept_out(held, index, 1);
      note_loss(held, page);
      RELIVE_FAIL_POINT(late_kept_out);
      continue;
    }
    published += Leaves::fill(held, index, slot) ? 1 : 0;
    RELIVE_FAIL_POINT(late_published);
  }
  return published;
}

// Publishes one explicit item if it waited for nothing else. Returns its cost, in rows, for the critical section.
uint32_t publish_if_filled(Held& held, uint32_t index, uint64_t record) {
  const Region& r = held.region;
  uint32_t looks = 1;
  if (Leaves(r, index).state(record) != kStateUnfilled || !has_late_columns_of(r, index, record, &looks)) return looks;
  const uint32_t given = r.records[index].windows_of(record)->pending_priority.load(kRelaxed);
  const float priority = group_priority(r, index, record, std::bit_cast<float>(given));
  if (Leaves::fill(held, index, record, priority)) Leaves::count_published(held, index, 1);
  RELIVE_FAIL_POINT(late_item);
  return looks + kLooksAnItem;
}

// Notes which explicit items to visit: those linked to rows of the page from which an item may reach the filled rows.
void note_rest(Held& held, uint64_t page, uint32_t first, uint32_t count) {
  const Region& r = held.region;
  LateRest& rest = r.header->late_rest;
  uint32_t reach = 0;
  for (const uint32_t i : r.record_indexes()) reach = std::max(reach, r.records[i].geometry->max_rows - 1);
  const uint64_t last = r.slot_of(page, first + count - 1);
  const uint32_t index = r.record_indexes().front();
  rest.stop.store(r.slot_of(page, first - std::min(first, reach)), kRelaxed);
  rest.index.store(index, kRelaxed);
  rest.node.store(r.records[index].heads[last], kRelaxed);
  rest.slot.store(last + 1, kRelaxed);
  RELIVE_FAIL_POINT(late_noted);
}

// After the last item that one index links to a row: continues with the next index, then with the row before.
void look_further(const Region& r, LateRest* rest) {
  uint64_t slot = rest->slot.load(kRelaxed) - 1;
  const auto indexes = r.record_indexes();
  auto next = std::find(indexes.begin(), indexes.end(), rest->index.load(kRelaxed)) + 1;
  if (next == indexes.end()) {
    next = indexes.begin();
    if (slot == rest->stop.load(kRelaxed)) return rest->slot.store(0, kRelaxed);
    rest->slot.store(slot--, kRelaxed);
  }
  rest->index.store(*next, kRelaxed);
  rest->node.store(r.records[*next].heads[slot], kRelaxed);
}

}  // namespace

bool FilledRows::looks_at_all_of(uint64_t page, uint32_t offset) {
  if (!RELIVE_RULE(L2_rows)) return has_late_columns(r_, page, offset, 1);
  if (r_.header->indexes[index_].sequence.crosses()) return has_late_columns_across(r_, index_, page, offset);
  const int64_t episode_step = head_at(r_, page, offset) & kStepMask;
  const int64_t spanned = late_spanned(r_, index_);
  const int64_t begin = int64_t{offset} - std::min<int64_t>(late_before(r_, index_), episode_step);
  const bool is_over = front_ != Front::kGoesOn && int64_t{offset} >= next_ + (front_ == Front::kStops ? 1 : 0);
  if (is_over || begin < begin_ || begin > next_) begin_at(page, begin);
  while (front_ == Front::kGoesOn && next_ < offset + spanned) look_at_next();
  return next_ >= offset + spanned || (front_ == Front::kEnds && next_ > offset);
}

// Starts at the row `offset` rows from row 0 of the page; a negative offset lies on a page before it.
void FilledRows::begin_at(uint64_t page, int64_t offset) {
  begin_ = next_ = offset;
  front_ = Front::kGoesOn;
  for (; offset < 0 && page != kNoPage; offset += r_.page_len) page = r_.alive(r_.pages[page].prev.load(kRelaxed));
  page_ = page;
  offset_ = static_cast<uint32_t>(std::max<int64_t>(offset, 0));
  if (page == kNoPage) front_ = Front::kStops;
}

void FilledRows::look_at_next() {
  if (offset_ == r_.page_len) {
    page_ = r_.alive(r_.pages[page_].next.load(kRelaxed));
    offset_ = 0;
  }
  if (page_ == kNoPage || offset_ < range_of(r_, page_).step_begin || offset_ >= range_of(r_, page_).step_end) {
    front_ = Front::kStops;
    return;
  }
  if (r_.is_tail(page_, offset_)) {
    front_ = Front::kEnds;
    return;
  }
  const uint32_t head = head_at(r_, page_, offset_);
  if (head & kLateBit) {
    front_ = Front::kStops;
    return;
  }
  ++offset_;
  ++next_;
  if (head & (kTerminatedBit | kTruncatedBit)) front_ = Front::kEnds;
}

bool has_late_columns(const Region& r, uint64_t page, uint32_t first, uint32_t count) {
  if (r.late_bytes == 0) return true;
  for (uint32_t offset = first; offset < first + count; ++offset)
    if (head_at(r, page, offset) & kLateBit) return false;
  return true;
}

bool has_late_columns_of(const Region& r, uint32_t index, uint64_t record, uint32_t* looks) {
  if (r.late_bytes == 0) return true;
  const Records& records = r.records[index];
  const ItemWindow* const windows = records.windows_of(record);
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
    const uint32_t num_rows = windows[w].num_rows.load(kRelaxed), stride = records.shape(w).stride;
    if (num_rows == 0) continue;
    uint32_t skipped = 0;  // rows to skip before the next row of the window
    const bool is_filled = walk_rows(r, windows[w].key.load(kRelaxed), records.shape(w).span(num_rows),
                                     [&](uint64_t page, uint32_t first, uint32_t count) {
                                       for (; skipped < count; skipped += stride) {
                                         *looks += 1;
                                         if (head_at(r, page, first + skipped) & kLateBit) return false;
                                       }
                                       skipped -= count;
                                       return true;
                                     });
    if (!is_filled) return false;
  }
  return true;
}

uint32_t late_reach(const Region& r) {
  uint32_t reach = 0;
  for (const uint32_t i : r.row_indexes()) reach = std::max(reach, late_spanned(r, i) - 1 + late_before(r, i));
  return reach;
}

void publish_filled(Held& held, uint64_t page, uint32_t first, uint32_t count) {
  const Region& r = held.region;
  const int64_t len = r.page_len;
  for (const uint32_t i : r.row_indexes()) {
    // From the item of the window that begins earliest and has the first row, to the item of the window that begins
    // latest and has the last row.
    uint64_t at = page;
    int64_t begin = int64_t{first} - (int64_t{late_spanned(r, i)} - 1);
    int64_t end = int64_t{first} + count + late_before(r, i);
    while (begin < 0) {
      const uint64_t prev = r.alive(r.pages[at].prev.load(kRelaxed));
      if (prev == kNoPage) break;
      at = prev;
      begin += len;
      end += len;
    }
    int64_t published = 0;
    while (at != kNoPage) {
      published += publish_on_page(held, i, at, begin, end);
      if (end <= len) break;
      at = r.alive(r.pages[at].next.load(kRelaxed));
      begin -= len;
      end -= len;
    }
    if (published > 0) Leaves::count_published(held, i, published);
  }
  if (r.has_records()) note_rest(held, page, first, count);
}

bool publish_rest(Held& held) {
  const Region& r = held.region;
  LateRest& rest = r.header->late_rest;
  while (rest.slot.load(kRelaxed) != 0) {
    if (held.looks_left == 0) {
      if (!RELIVE_RULE(L6_rest)) rest.slot.store(0, kRelaxed);
      return false;
    }
    const uint32_t index = rest.index.load(kRelaxed), node = rest.node.load(kRelaxed);
    const uint32_t looks = node != 0 ? publish_if_filled(held, index, r.records[index].record_of(node - 1)) : 1;
    held.looks_left -= std::min(held.looks_left, looks);
    if (node != 0) {
      rest.node.store(r.records[index].nodes[node - 1].next, kRelaxed);
    } else {
      look_further(r, &rest);
    }
  }
  return true;
}

void publish_all_filled(Held& held) {
  const Region& r = held.region;
  if (r.late_bytes == 0) return;
  for (const uint32_t i : r.record_indexes())
    for (uint64_t record = 0; record < r.records[i].geometry->max_items; ++record)
      (void)publish_if_filled(held, i, record);
  r.header->late_rest.slot.store(0, kRelaxed);
  for (const uint32_t i : r.row_indexes())
    for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
      if (!Region::is_used(r.words[page].load(kRelaxed))) continue;
      const int64_t published = publish_on_page(held, i, page, 0, r.page_len);
      if (published > 0) Leaves::count_published(held, i, published);
    }
}

}  // namespace relive
