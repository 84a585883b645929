#include "relive/pages/groups.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/records.hpp"
#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr float kNoneGiven = std::numeric_limits<float>::quiet_NaN();

// A row of a lane; kNoPage if the row does not exist.
struct Row {
  uint64_t page = kNoPage;
  uint32_t offset = 0;

  bool is_there() const { return page != kNoPage; }
};

// The row before `end` of a page; if `end` is 0, the last row of the page before.
Row row_before(const Region& r, uint64_t page, uint32_t end) {
  if (page != kNoPage && end == 0) {
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    end = r.page_len;
  }
  if (page == kNoPage || end <= range_of(r, page).step_begin || end > range_of(r, page).step_end) return {};
  return {page, end - 1};
}

// The last step of a lane's last episode, and the tail after it.
struct LastStep {
  Row step, tail;
};

// ended: the end of the episode must be marked in the step or after it; otherwise it must not be marked.
LastStep last_step(const Region& r, uint32_t lane_slot, bool ended) {
  const uint64_t open = r.alive(r.lanes[lane_slot].open.load(kRelaxed));
  Row row = open == kNoPage ? Row{} : row_before(r, open, range_of(r, open).step_end), tail;
  if (!row.is_there()) return {};
  const bool has_state = r.geometry->has_state != 0;
  if (has_state && r.is_tail(row.page, row.offset) != ended) return {};
  if (has_state && ended) {
    tail = row;
    row = row_before(r, row.page, row.offset);
  }
  if (!row.is_there() || r.is_tail(row.page, row.offset)) return {};
  const uint32_t head = r.head_of(r.slot_of(row.page, row.offset)).load(kRelaxed);
  const bool has_mark = (head & (kTerminatedBit | kTruncatedBit)) != 0;
  return has_state || has_mark == ended ? LastStep{row, tail} : LastStep{};
}

uint64_t key_of(const Region& r, const Row& row) {
  if (!row.is_there()) return 0;
  return static_cast<uint64_t>(r.key_of(r.slot_of(row.page, row.offset), r.words[row.page].load(kRelaxed)));
}

// An episode as a member of a group: all its rows, or the part that too_long selects. Some rows may be evicted, or have
// become tails.
struct Member {
  FoundWindow window;
  uint64_t last = 0, tail = 0;  // keys of the episode's last step and of the tail after it; 0: none

  // Whether a noted key names this episode. A cut may have turned the step that was noted as the last one into a tail.
  bool is_noted(uint64_t noted) const { return noted == last || (noted == tail && tail != 0); }
};

// The number of rows of the episode after the last row of its member.
uint32_t num_left_out_behind(const Region& r, uint32_t index, uint64_t last_slot, uint32_t left_out) {
  constexpr uint64_t kMembers = 0x6d656d62;  // a stream of random numbers that no draw uses
  switch (r.header->indexes[index].group.too_long) {
    case TooLong::kTail:
      return 0;
    case TooLong::kRandom:
      return CounterRng(r.geometry->seed, r.lane_of(last_slot), last_slot, kMembers).below(index, left_out + 1);
    default:
      return left_out;
  }
}

Member last_episode(const Region& r, uint32_t index, uint32_t lane_slot, bool ended) {
  const LastStep found = last_step(r, lane_slot, ended);
  if (!found.step.is_there()) return {{WhyNot::kNotYet}};
  const uint64_t slot = r.slot_of(found.step.page, found.step.offset);
  const uint32_t step = r.head_of(slot).load(kRelaxed) & kStepMask;
  Member member{{}, key_of(r, found.step), key_of(r, found.tail)};
  const WindowConfig& shape = r.records[index].shape(0);
  const uint32_t num_rows = std::min(step + 1, shape.length), left_out = step + 1 - num_rows;
  const bool is_refused = left_out > 0 && r.header->indexes[index].group.too_long == TooLong::kRefuse;
  if (is_refused) return {{WhyNot::kEnd}};  // no writer of this table wrote such an episode
  const uint32_t behind = left_out == 0 ? 0 : num_left_out_behind(r, index, slot, left_out);
  member.window = find_window(r, shape, {static_cast<int64_t>(member.last), -static_cast<int64_t>(num_rows), behind});
  return member;
}

int64_t load_value(const Records& records, uint64_t record) {
  int64_t value;
  std::memcpy(&value, records.values_of(record), sizeof value);
  return value;
}

// The episode's value in the group_by column. key: of an existing row of the episode.
int64_t value_of(const Region& r, uint32_t index, int64_t key) {
  const ColumnLayout& column = r.columns[r.header->indexes[index].group.column];
  const uint64_t slot = r.key_slot(key);
  int64_t value;
  std::memcpy(&value, r.page_base(r.page_of(slot)) + column.offset + r.offset_of(slot) * column.stride, sizeof value);
  return value;
}

uint32_t num_members(const Records& records, uint64_t record) {
  const ItemWindow* const windows = records.windows_of(record);
  uint32_t count = 0;
  while (count < records.geometry->group_size && windows[count].num_rows.load(kRelaxed) != 0) ++count;
  return count;
}

uint64_t find_open(const Region& r, uint32_t index, int64_t value) {
  const Records& records = r.records[index];
  for (uint64_t record = 0; record < records.geometry->max_items; ++record)
    if (is_open_group(r, index, record) && load_value(records, record) == value) return record;
  return kNoRecord;
}

// Opens a group of one member in the place of the oldest group. The bound on ends in one critical section (rule X7)
// does not apply, because the end of an episode must not be refused. Returns kNoRecord if every record has used up its
// generations.
uint64_t open_group(Held& held, uint32_t index, int64_t value, const FoundWindow& episode) {
  const Records& records = held.region.records[index];
  held.ends_left = std::max(held.ends_left, 1u);
  const uint64_t record = take_record(held, index);
  if (record == kNoRecord) return kNoRecord;
  begin_record(held, index, record);
  ItemWindow* const windows = records.windows_of(record);
  for (uint32_t w = 0; w < records.geometry->group_size; ++w) windows[w].num_rows.store(0, kRelaxed);
  windows->key.store(episode.key, kRelaxed);
  windows->num_rows.store(episode.num_rows, kRelaxed);
  windows->pending_priority.store(std::bit_cast<uint32_t>(kNoneGiven), kRelaxed);
  std::memcpy(records.values_of(record), &value, sizeof value);
  RELIVE_FAIL_POINT(group_windows);
  hang_window(held, index, record, 0);
  DueTimes::begin_wait(held, index, record);
  records.words[record].store(used_word(records.words[record].load(kRelaxed)), std::memory_order_release);
  RELIVE_FAIL_POINT(group_opened);
  return record;
}

// Adds a member. The store of its number of rows is the commit (rule Y1).
void add_member(Held& held, uint32_t index, uint64_t record, const FoundWindow& episode) {
  const Records& records = held.region.records[index];
  const uint32_t number = num_members(records, record);
  ItemWindow& window = records.windows_of(record)[number];
  window.key.store(episode.key, kRelaxed);
  RELIVE_FAIL_POINT(group_key);
  window.num_rows.store(episode.num_rows, std::memory_order_release);
  RELIVE_FAIL_POINT(group_member);
  hang_window(held, index, record, number);
}

void let_in_if_full(Held& held, uint32_t index, uint64_t record) {
  const Records& records = held.region.records[index];
  if (num_members(records, record) < records.geometry->group_size) return;
  const bool is_item = let_in(held, index, record, kNoneGiven);
  RELIVE_FAIL_POINT(group_full);
  if (is_item) Leaves::count_published(held, index, 1);
  RELIVE_FAIL_POINT(group_counted);
}

void join(Held& held, uint32_t index, const FoundWindow& episode) {
  const int64_t value = value_of(held.region, index, episode.key);
  uint64_t record = find_open(held.region, index, value);
  if (record == kNoRecord) {
    record = open_group(held, index, value, episode);
  } else {
    add_member(held, index, record, episode);
  }
  if (record == kNoRecord) return;
  let_in_if_full(held, index, record);
  keep_a_record_free(held, index);
}

bool ends_an_episode(const Region& r, int64_t key, uint32_t num_rows) {
  Row last;
  walk_rows(r, key, num_rows, [&last](uint64_t page, uint32_t first, uint32_t count) {
    last = {page, first + count - 1};
    return true;
  });
  if (r.geometry->has_state == 0)
    return (r.head_of(r.slot_of(last.page, last.offset)).load(kRelaxed) & (kTerminatedBit | kTruncatedBit)) != 0;
  if (last.offset + 1 < r.page_len) return r.is_tail(last.page, last.offset + 1);
  const uint64_t ref = r.pages[last.page].next.load(kRelaxed), next = r.alive(ref);
  return next != kNoPage ? r.is_tail(next, 0) : ref != 0;  // the page of the tail may be gone: no item needs the tail
}

// Checks one member, whose rows exist.
const char* check_member(const Region& r, uint32_t index, uint64_t record, const ItemWindow& window) {
  const Records& records = r.records[index];
  const int64_t key = window.key.load(kRelaxed);
  const uint64_t slot = r.key_slot(key);
  const uint32_t num_rows = window.num_rows.load(kRelaxed);
  // A member of a too long episode may have a part of its rows.
  const TooLong part = num_rows < records.shape(0).length ? TooLong::kRefuse : r.header->indexes[index].group.too_long;
  const bool begins = part == TooLong::kRefuse || part == TooLong::kHead;
  const bool ends = part == TooLong::kRefuse || part == TooLong::kTail;
  if (begins && (r.head_of(slot).load(kRelaxed) & kStepMask) != 0)
    return "a group has a member that does not begin an episode";
  if (ends && !ends_an_episode(r, key, num_rows)) return "a group has a member that has not ended";
  if (value_of(r, index, key) != load_value(records, record)) return "a group has a member of another value";
  return records.nodes[records.heads[slot] - 1].next == 0 ? nullptr : "an episode is in two groups";
}

}  // namespace

void join_groups(Held& held, uint32_t lane_slot) {
  const Region& r = held.region;
  if (!r.has_groups()) return;
  for (const uint32_t i : r.record_indexes()) {
    const Records& records = r.records[i];
    if (!records.are_groups()) continue;
    const Member member = last_episode(r, i, lane_slot, true);
    if (member.window.why != WhyNot::kNothing) continue;
    std::atomic<uint64_t>& joined = records.joined[lane_slot];
    if (member.is_noted(joined.load(kRelaxed))) continue;
    // A death between the two stores left a member that is noted nowhere else; a group is then linked to its first row.
    if (records.heads[r.key_slot(member.window.key)] == 0 || !RELIVE_RULE(Y1_once)) join(held, i, member.window);
    joined.store(member.last, kRelaxed);
    RELIVE_FAIL_POINT(group_joined);
  }
}

void pass_by_groups(Held& held, uint32_t lane_slot) {
  const Region& r = held.region;
  if (!r.has_groups()) return;
  for (const uint32_t i : r.record_indexes()) {
    if (!r.records[i].are_groups()) continue;
    const Member member = last_episode(r, i, lane_slot, false);
    if (member.window.why != WhyNot::kNothing) continue;
    r.records[i].joined[lane_slot].store(member.last, kRelaxed);
    RELIVE_FAIL_POINT(group_passed);
  }
}

void recover_groups(Held& held) {
  const Region& r = held.region;
  for (const uint32_t i : r.record_indexes())
    for (uint64_t record = 0; record < r.records[i].geometry->max_items; ++record)
      if (is_open_group(r, i, record)) let_in_if_full(held, i, record);
}

const char* broken_groups(const Region& r, uint32_t index) {
  const Records& records = r.records[index];
  if (!records.are_groups()) return nullptr;
  for (uint64_t record = 0; record < records.geometry->max_items; ++record) {
    if (!Region::is_used(records.words[record].load(kRelaxed))) continue;
    const uint32_t count = num_members(records, record);
    const bool is_open = is_open_group(r, index, record);
    if (is_open == (count == records.geometry->group_size))
      return is_open ? "a group that has all its members waits for more" : "a group is an item and lacks members";
    if (is_open && find_open(r, index, load_value(records, record)) != record) return "two open groups have one value";
    for (uint32_t w = 0; w < records.geometry->group_size; ++w) {
      const ItemWindow& window = records.windows_of(record)[w];
      if (w >= count && window.num_rows.load(kRelaxed) != 0) return "the members of a group have a gap";
      if (w >= count) continue;
      if (const char* broken = check_member(r, index, record, window); broken != nullptr) return broken;
    }
  }
  return nullptr;
}

const char* broken_join(const Region& r, uint32_t lane_slot) {
  for (const uint32_t i : r.record_indexes()) {
    if (!r.records[i].are_groups()) continue;
    const Member member = last_episode(r, i, lane_slot, true);
    if (member.window.why == WhyNot::kNothing && !member.is_noted(r.records[i].joined[lane_slot].load(kRelaxed)))
      return "an episode that has ended was not looked at for its group";
  }
  return nullptr;
}

}  // namespace relive
