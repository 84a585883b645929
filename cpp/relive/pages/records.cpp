#include "relive/pages/records.hpp"

#include <bit>
#include <cstring>

#include "relive/index/leaves.hpp"
#include "relive/index/record_queue.hpp"
#include "relive/index/recover_leaves.hpp"
#include "relive/pages/group_weight.hpp"
#include "relive/pages/late.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kNodesAnEnd = 8;    // nodes that count as one item that ends
constexpr uint32_t kBytesAnEnd = 512;  // bytes of own columns that count as one item

bool is_used(const Records& records, uint64_t record) { return Region::is_used(records.words[record].load(kRelaxed)); }

void hang(const Records& records, uint64_t node, uint64_t slot) {
  RecordNode& at = records.nodes[node];
  const auto name = static_cast<uint32_t>(node + 1);
  at = {slot + 1, 0, records.heads[slot]};
  if (at.next != 0) records.nodes[at.next - 1].prev = name;
  records.heads[slot] = name;
}

// If the visit for late columns stands at a node that is unlinked, the visit continues with the next node.
void pass_by(const Region& r, uint32_t index, uint64_t node, uint32_t next) {
  LateRest& rest = r.header->late_rest;
  if (rest.slot.load(kRelaxed) != 0 && rest.index.load(kRelaxed) == index && rest.node.load(kRelaxed) == node + 1)
    rest.node.store(next, kRelaxed);
}

void take_down(const Region& r, uint32_t index, uint64_t node) {
  const Records& records = r.records[index];
  RecordNode& at = records.nodes[node];
  if (at.place == 0) return;
  pass_by(r, index, node, at.next);
  (at.prev == 0 ? records.heads[at.place - 1] : records.nodes[at.prev - 1].next) = at.next;
  if (at.next != 0) records.nodes[at.next - 1].prev = at.prev;
  at = {0, 0, 0};
}

}  // namespace

bool hang_window(Held& held, uint32_t index, uint64_t record, uint32_t window) {
  const Region& r = held.region;
  const Records& records = r.records[index];
  const ItemWindow& at = records.windows_of(record)[window];
  const uint32_t num_rows = at.num_rows.load(kRelaxed);
  if (num_rows > records.shape(window).length) return false;
  uint32_t part = 0;
  const uint32_t span = records.shape(window).span(num_rows);
  return walk_rows(r, at.key.load(kRelaxed), span, [&](uint64_t page, uint32_t first, uint32_t) {
    hang(records, records.node_of(record, window, part++), r.slot_of(page, first));
    return true;
  });
}

namespace {

// Links a record to each page that its windows touch. Returns false if a row does not exist, or the record has no
// window.
bool hang_record(Held& held, uint32_t index, uint64_t record) {
  const Records& records = held.region.records[index];
  const ItemWindow* const windows = records.windows_of(record);
  bool has_window = false;
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
    if (windows[w].num_rows.load(kRelaxed) == 0) continue;
    if (!hang_window(held, index, record, w)) return false;
    has_window = true;
  }
  return has_window;
}

void take_record_down(const Region& r, uint32_t index, uint64_t record) {
  const Records& records = r.records[index];
  const uint64_t first = records.node_of(record, 0, 0);
  for (uint64_t node = first; node < first + records.geometry->nodes_a_record(); ++node) take_down(r, index, node);
}

void write_record(const Records& records, uint64_t record, const NewRecord& from) {
  ItemWindow* const to = records.windows_of(record);
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
    to[w].key.store(from.windows[w].key, kRelaxed);
    to[w].num_rows.store(from.windows[w].num_rows, kRelaxed);
  }
  to->pending_priority.store(std::bit_cast<uint32_t>(from.given), kRelaxed);
  std::byte* const values = records.values_of(record);
  for (uint32_t c = 0; c < records.geometry->num_columns; ++c) {
    const ColumnLayout& column = records.columns[c];
    std::memcpy(values + column.offset, from.columns[c] + from.position * column.num_bytes, column.num_bytes);
  }
}

// The number of rows that a window spans from the row on to which this node is linked.
uint64_t rows_from(const Region& r, const Records& records, uint64_t node) {
  const uint64_t place = node % records.geometry->nodes_a_record();
  const uint64_t w = place / records.geometry->pages_a_window, part = place % records.geometry->pages_a_window;
  const ItemWindow& window = records.windows_of(records.record_of(node))[w];
  const uint64_t span = records.shape(w).span(window.num_rows.load(kRelaxed));
  const uint64_t first = r.offset_of(r.key_slot(window.key.load(kRelaxed)));
  return part == 0 ? span : span - (part * r.page_len - first);
}

// The page and row of a key whose row exists.
struct Place {
  uint64_t page = kNoPage;
  uint32_t row = 0;
};

WhyNot find_row(const Region& r, int64_t key, Place* place) {
  *place = {r.page_of(r.key_slot(key)), r.offset_of(r.key_slot(key))};
  const uint64_t word = r.words[place->page].load(std::memory_order_acquire);
  if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return WhyNot::kGone;
  const Range range = Range::unpack(r.pages[place->page].range.load(std::memory_order_acquire));
  if (place->row < range.step_begin) return WhyNot::kGone;
  if (place->row >= range.step_end) return WhyNot::kNotYet;
  return r.is_tail(place->page, place->row) ? WhyNot::kTail : WhyNot::kNothing;
}

// Moves num_rows rows back in the lane.
WhyNot step_back(const Region& r, uint32_t num_rows, Place* place) {
  while (num_rows > place->row) {
    num_rows -= place->row + 1;
    const uint64_t ref = r.pages[place->page].prev.load(std::memory_order_acquire);
    if (ref == 0) return WhyNot::kBegin;
    *place = {r.alive(ref), r.page_len - 1};
    if (place->page == kNoPage) return WhyNot::kGone;
  }
  place->row -= num_rows;
  return WhyNot::kNothing;
}

// Checks the rows that a window spans, from its first row on. Stores the slot of the last row in *last.
WhyNot check_span(const Region& r, const WindowRows& asked, uint32_t stride, uint32_t span, Place place,
                  uint64_t* last) {
  for (uint32_t row = 0; row < span;) {  // each pass checks the rows of one page
    const Range range = Range::unpack(r.pages[place.page].range.load(std::memory_order_acquire));
    const uint32_t count = std::min(span - row, r.page_len - place.row);
    if (place.row < range.step_begin) return WhyNot::kGone;
    if (place.row + count > range.step_end) return WhyNot::kNotYet;
    if (r.num_tails(place.page, place.row, place.row + count) != 0) return WhyNot::kEnd;
    const uint64_t word = r.words[place.page].load(std::memory_order_acquire);
    for (uint32_t at = (stride - row % stride) % stride; asked.rows != nullptr && at < count; at += stride)
      if (asked.rows[(row + at) / stride] != r.key_of(r.slot_of(place.page, place.row + at), word))
        return WhyNot::kOther;
    row += count;
    *last = r.slot_of(place.page, place.row + count - 1);
    if (row == span) break;
    const uint64_t ref = r.pages[place.page].next.load(std::memory_order_acquire);
    if (ref == 0) return WhyNot::kNotYet;
    place = {r.alive(ref), 0};
    if (place.page == kNoPage) return WhyNot::kGone;
  }
  return WhyNot::kNothing;
}

}  // namespace

uint64_t used_word(uint64_t word) {
  return Region::generation_of(word) << kGenerationShift | static_cast<uint64_t>(PageState::kOpen);
}

bool is_open_group(const Region& r, uint32_t index, uint64_t record) {
  return r.records[index].are_groups() && is_used(r.records[index], record) &&
         Leaves(r, index).state(record) == kStatePending;
}

bool let_in(Held& held, uint32_t index, uint64_t record, float given) {
  uint32_t looks = 0;
  if (has_late_columns_of(held.region, index, record, &looks) || !RELIVE_RULE(L2_items))
    return Leaves::complete(held, index, record, group_priority(held.region, index, record, given));
  Leaves::keep_unfilled(held, index, record);
  RELIVE_FAIL_POINT(late_insert);
  return false;
}

FoundWindow find_window(const Region& r, const WindowConfig& shape, const WindowRows& asked) {
  FoundWindow found;
  if (asked.num_rows == 0) return found;
  found.num_rows = static_cast<uint32_t>(asked.num_rows < 0 ? -asked.num_rows : asked.num_rows);
  const uint32_t span = shape.span(found.num_rows);
  Place place;
  found.why = find_row(r, asked.key, &place);
  if (found.why == WhyNot::kNothing && asked.num_rows < 0) found.why = step_back(r, span - 1 + asked.behind, &place);
  if (found.why != WhyNot::kNothing) return found;
  const uint64_t first = r.slot_of(place.page, place.row);
  found.key = r.key_of(first, r.words[place.page].load(std::memory_order_acquire));
  uint64_t last = first;
  found.why = check_span(r, asked, shape.stride, span, place, &last);
  // Uids only rise from row to row: equal uids of the first and last row prove that all rows are of one lane.
  if (found.why == WhyNot::kNothing && r.lane_of(first) != r.lane_of(last)) found.why = WhyNot::kLane;
  return found;
}

const char* words_of(WhyNot why) {
  switch (why) {
    case WhyNot::kGone:
      return "it made room for newer rows, or was cleared";
    case WhyNot::kNotYet:
      return "the lane has not so many rows yet";
    case WhyNot::kTail:
      return "it is the state behind an end, and no step";
    case WhyNot::kBegin:
      return "the lane begins with a later row";
    case WhyNot::kEnd:
      return "an episode ends between them";
    case WhyNot::kLane:
      return "they are not of one lane";
    case WhyNot::kOther:
      return "they do not follow each other at the window's stride";
    default:
      return "";
  }
}

uint32_t cost_of_end(const Region& r, uint32_t index) {
  const uint64_t nodes = r.records[index].geometry->nodes_a_record();
  return static_cast<uint32_t>((nodes + kNodesAnEnd - 1) / kNodesAnEnd);
}

// The order is state, leaf, word: a death in between leaves a used record whose item has ended, which recovery frees.
// Nothing of the record is written again before its new generation is visible, as for a page (rule D3).
void end_record(Held& held, uint32_t index, uint64_t record, uint16_t final_state) {
  Region& r = held.region;
  const Records& records = r.records[index];
  if (is_open_group(r, index, record)) r.header->counters.dropped_groups.fetch_add(1, kRelaxed);
  Leaves::retire(held, index, record, final_state);
  RELIVE_FAIL_POINT(record_ended);
  const uint64_t word = records.words[record].load(kRelaxed);
  records.words[record].store(RELIVE_RULE(X4_generation) ? r.freed_word(word) : word & ~uint64_t{3},
                              std::memory_order_release);
  RELIVE_FAIL_POINT(record_word);
  release_fence();
  take_record_down(r, index, record);
  RELIVE_FAIL_POINT(record_unhung);
  RecordQueue::note_free(held, index, record);
}

namespace {

// The part of a critical section's bound that a new item of the index uses up.
uint32_t cost_of_item(const Region& r, uint32_t index) {
  return std::max(cost_of_end(r, index), r.records[index].geometry->value_stride / kBytesAnEnd);
}

// For an index whose remover is not Fifo: the free record that every critical section leaves.
uint64_t take_free_record(Held& held, uint32_t index) {
  if (held.ends_left == 0) return kNoRecord;
  const uint64_t record = RecordQueue::first_free(held, index);
  if (record == Leaves::kNoLeaf) return kNoRecord;
  held.ends_left -= std::min(held.ends_left, cost_of_item(held.region, index));
  std::atomic<uint64_t>& taken = held.region.header->index_state[index].next_item;
  taken.store(taken.load(kRelaxed) + 1, kRelaxed);
  RELIVE_FAIL_POINT(insert_taken);
  return record;
}

}  // namespace

void begin_record(Held& held, uint32_t index, uint64_t record) {
  Leaves::open(held, index, record, 1, 0);
  RecordQueue::begin_wait(held, index, record, held.region.header->index_state[index].next_item.load(kRelaxed) - 1);
  RELIVE_FAIL_POINT(record_waits);
}

void keep_a_record_free(Held& held, uint32_t index) {
  if (!Leaves(held.region, index).has_queue() || !RELIVE_RULE(R5_room)) return;
  while (RecordQueue::first_free(held, index) == Leaves::kNoLeaf) {
    const uint64_t record = RecordQueue::next_to_go(held, index);
    if (record == Leaves::kNoLeaf) return;  // every record has used up its generations
    end_record(held, index, record, kStateEnded);
    RELIVE_FAIL_POINT(record_chosen);
  }
}

// The cursor moves before anything of the record is written. So it always stands at the oldest item, and a death in
// between wastes one place of the ring.
uint64_t take_record(Held& held, uint32_t index) {
  const Region& r = held.region;
  if (Leaves(r, index).has_queue()) return take_free_record(held, index);
  const Records& records = r.records[index];
  const uint64_t max_items = records.geometry->max_items;
  std::atomic<uint64_t>& next = r.header->index_state[index].next_item;
  const uint32_t cost = cost_of_item(r, index);
  for (uint64_t looks = 0; looks < max_items && held.ends_left > 0; ++looks) {
    const uint64_t at = next.load(kRelaxed);
    const uint64_t record = at % max_items;
    if (is_used(records, record)) end_record(held, index, record, kStateEnded);
    held.ends_left -= std::min(held.ends_left, cost);
    next.store(at + 1, kRelaxed);
    RELIVE_FAIL_POINT(insert_taken);
    if (Region::state_of(records.words[record].load(kRelaxed)) == PageState::kFree) return record;
  }
  return kNoRecord;
}

int64_t fill_record(Held& held, uint32_t index, uint64_t record, const NewRecord& from, bool* is_item) {
  const Region& r = held.region;
  const Records& records = r.records[index];
  const uint64_t word = used_word(records.words[record].load(kRelaxed));
  begin_record(held, index, record);
  if (RELIVE_RULE(X2_windows_first)) write_record(records, record, from);
  RELIVE_FAIL_POINT(insert_windows);
  if (RELIVE_RULE(X2_windows_first)) hang_record(held, index, record);
  RELIVE_FAIL_POINT(insert_hung);
  records.words[record].store(word, std::memory_order_release);
  RELIVE_FAIL_POINT(insert_word);
  *is_item = let_in(held, index, record, from.given);
  if (!RELIVE_RULE(X2_windows_first)) {
    RELIVE_FAIL_POINT(insert_windows);
    write_record(records, record, from);
    hang_record(held, index, record);
  }
  RELIVE_FAIL_POINT(insert_done);
  return r.key_of_leaf(index, record, word);
}

bool end_records_at(Held& held, uint64_t slot) {
  const Region& r = held.region;
  if (!RELIVE_RULE(X3_rows)) return true;
  for (const uint32_t i : r.record_indexes()) {
    const Records& records = r.records[i];
    const uint32_t cost = cost_of_end(r, i);
    while (records.heads[slot] != 0) {
      if (held.ends_left == 0) {
        RELIVE_FAIL_POINT(evict_not_yet);
        return false;
      }
      held.ends_left -= std::min(held.ends_left, cost);
      end_record(held, i, records.record_of(records.heads[slot] - 1), kStateEnded);
      RELIVE_FAIL_POINT(record_rows);
    }
  }
  return true;
}

bool end_records_behind(Held& held, uint64_t slot, uint64_t rows) {
  const Region& r = held.region;
  for (const uint32_t i : r.record_indexes()) {
    const Records& records = r.records[i];
    for (uint32_t name = records.heads[slot]; name != 0;) {
      const uint64_t node = name - 1;
      name = records.nodes[node].next;
      if (rows_from(r, records, node) <= rows) continue;
      if (held.ends_left == 0) return false;
      held.ends_left -= std::min(held.ends_left, cost_of_end(r, i));
      end_record(held, i, records.record_of(node), kStateEnded);
      name = records.heads[slot];  // other windows of the record may have been linked here
    }
  }
  return true;
}

// Rebuilds nodes and heads. A record that cannot be linked completely is an item without its rows, or was never
// finished.
void recover_records(Held& held) {
  Region& r = held.region;
  for (const uint32_t i : r.record_indexes()) {
    const Records& records = r.records[i];
    const LeafRecovery leaves(r, i);
    const uint64_t max_items = records.geometry->max_items;
    if (RELIVE_RULE(X6_hang)) {
      std::fill_n(records.heads, r.geometry->num_slots, 0u);
      std::fill_n(records.nodes, max_items * records.geometry->nodes_a_record(), RecordNode{0, 0, 0});
    }
    ItemCounts counted;
    for (uint64_t record = 0; record < max_items; ++record) {
      if (is_used(records, record)) {
        const uint16_t state = leaves.state(record);
        const bool is_made = Leaves::is_waiting(state) || leaves.is_published(record) || is_open_group(r, i, record);
        const bool is_whole = !RELIVE_RULE(X6_hang) || hang_record(held, i, record);
        if (RELIVE_RULE(X6_end) && !(is_made && is_whole)) end_record(held, i, record, kStateEnded);
      }
      const auto keeps = [&leaves](uint32_t traits) { return leaves.keeps(traits); };
      const bool is_there = is_used(records, record);
      const uint16_t state = leaves.state(record);
      leaves.settle(held, record, state, is_there, keeps);
      leaves.count_leaves(state, is_there, 1, &counted);
      leaves.count_massless(record, state, is_there, &counted);
      RELIVE_FAIL_POINT(recover_records);
    }
    LeafRecovery::store_counts(held, i, counted);
    if (!leaves.has_queue()) continue;
    Leaves::rebuild(held, i);  // the rest of this critical section may take a record
    keep_a_record_free(held, i);
  }
}

}  // namespace relive
