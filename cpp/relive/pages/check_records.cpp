// The invariants of records: every item has its rows and is linked to each page of them, and no other node is linked.
#include <cmath>

#include "relive/index/leaf_checks.hpp"
#include "relive/index/leaves.hpp"
#include "relive/index/record_queue.hpp"
#include "relive/pages/late.hpp"
#include "relive/pages/records.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Whether a node agrees with its neighbours, or with the head of its list.
bool is_linked(const Records& records, uint64_t node) {
  const RecordNode& at = records.nodes[node];
  const auto name = static_cast<uint32_t>(node + 1);
  const uint32_t before = at.prev == 0 ? records.heads[at.place - 1] : records.nodes[at.prev - 1].next;
  return before == name && (at.next == 0 || records.nodes[at.next - 1].prev == name);
}

// Checks the nodes of one record: a node of a page that a window touches is linked there, all others are not. Adds up
// the linked nodes.
const char* check_hanging(const Region& r, const Records& records, uint64_t record, uint64_t* num_hanging) {
  const ItemWindow* const windows = records.windows_of(record);
  const bool is_used = Region::is_used(records.words[record].load(kRelaxed));
  bool has_window = false;
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
    const uint32_t num_rows = windows[w].num_rows.load(kRelaxed);
    uint32_t part = 0;
    bool hangs = true;
    if (is_used && num_rows != 0) {
      has_window = true;
      if (num_rows > records.shape(w).length) return "an explicit item's window is too long";
      const uint32_t span = records.shape(w).span(num_rows);
      const bool is_whole =
          walk_rows(r, windows[w].key.load(kRelaxed), span, [&](uint64_t page, uint32_t first, uint32_t) {
            const uint64_t node = records.node_of(record, w, part++);
            hangs = hangs && records.nodes[node].place == r.slot_of(page, first) + 1 && is_linked(records, node);
            return true;
          });
      if (!is_whole) return "an explicit item outlives a row it needs";
    }
    if (!hangs) return "an explicit item does not hang at a row that it needs";
    *num_hanging += part;
    for (; part < records.geometry->pages_a_window; ++part)
      if (records.nodes[records.node_of(record, w, part)].place != 0) return "a record hangs at a row that it has not";
  }
  if (is_used && !has_window) return "an explicit item without a window";
  return nullptr;
}

// Late columns: an item is unfilled exactly while one of its rows waits, except where rule L6 has still to visit it.
const char* check_filled(const Region& r, uint32_t index, uint64_t record, uint16_t state) {
  if (r.late_bytes == 0) return nullptr;
  uint32_t looks = 0;
  const bool is_filled = has_late_columns_of(r, index, record, &looks);
  if (!is_filled && state != kStateUnfilled && !is_open_group(r, index, record))
    return "an explicit item is published, late columns are still to come";
  if (is_filled && state == kStateUnfilled && r.header->late_rest.slot.load(kRelaxed) == 0)
    return "an explicit item waits for late columns that its rows have";
  return nullptr;
}

const char* check_leaf(const Region& r, uint32_t index, uint64_t record, ItemCounts* counted) {
  const Leaves leaves(r, index);
  const bool is_used = Region::is_used(r.map(index).word(record));
  const uint16_t state = leaves.state(record);
  const double mass = leaves.mass(record);
  const bool is_item = is_used && leaves.is_drawable(state);
  leaves.count_leaves(state, is_used, 1, counted);
  leaves.count_massless(record, state, is_used, counted);
  if (is_used && !Leaves::is_waiting(state) && !leaves.is_published(record) && !is_open_group(r, index, record))
    return "a record in use stands for no item";
  const bool waits = is_used && (Leaves::is_waiting(state) || is_open_group(r, index, record));
  if (leaves.is_timed() && DueTimes(leaves).has(Due::kWait, record) != waits)
    return "an explicit item that waits has no start of its wait, or another one has it";
  if (const char* wrong = RecordQueue(leaves).wrong_place(record, is_used)) return wrong;
  if (leaves.is_bounded() && Bounds(leaves).has_order(record) != is_item)
    return "the remover sees an explicit item that cannot be drawn, or misses one that can";
  if (is_item && !Bounds(leaves).is_of_one_priority(record))
    return "an explicit item is drawn by one priority and removed by another";
  if (const char* wrong = LeafChecks(leaves).wrong_freshness(record, is_used, is_item)) return wrong;
  if (mass == leaves.nothing()) return nullptr;
  if (!is_item) return "a leaf that stands for no live explicit item has mass";
  return std::isfinite(mass) && mass >= 0.0 ? nullptr : "a leaf is not a finite mass >= 0";
}

// The lists of all heads contain exactly the linked nodes, each in the list of its own row.
const char* check_heads(const Region& r, const Records& records, uint64_t num_hanging) {
  uint64_t count = 0;
  for (uint64_t slot = 0; slot < r.geometry->num_slots; ++slot)
    for (uint32_t name = records.heads[slot]; name != 0; name = records.nodes[name - 1].next)
      if (records.nodes[name - 1].place != slot + 1 || ++count > num_hanging) return "a row's list of items is broken";
  return count == num_hanging ? nullptr : "an explicit item hangs on no list";
}

const char* check_index(const Region& r, uint32_t index) {
  const Records& records = r.records[index];
  uint64_t num_hanging = 0, num_free = 0, num_retired = 0;
  ItemCounts counted;
  for (uint64_t record = 0; record < records.geometry->max_items; ++record) {
    num_free += Region::state_of(r.map(index).word(record)) == PageState::kFree ? 1 : 0;
    num_retired += Region::state_of(r.map(index).word(record)) == PageState::kRetired ? 1 : 0;
    const char* broken = check_leaf(r, index, record, &counted);
    if (broken == nullptr) broken = check_hanging(r, records, record, &num_hanging);
    if (broken == nullptr && Region::is_used(r.map(index).word(record)))
      broken = check_filled(r, index, record, Leaves(r, index).state(record));
    if (broken != nullptr) return broken;
  }
  if (Leaves(r, index).has_queue() && num_free == 0 && num_retired < records.geometry->max_items)
    return "no record is free for the next explicit item";
  if (const char* wrong = LeafChecks(r, index).wrong_count(counted)) return wrong;
  const char* const broken = check_heads(r, records, num_hanging);
  return broken != nullptr ? broken : LeafChecks(r, index).broken_node();
}

}  // namespace

const char* broken_records(const Region& r) {
  for (const uint32_t i : r.record_indexes())
    if (const char* broken = check_index(r, i); broken != nullptr) return broken;
  return nullptr;
}

}  // namespace relive
