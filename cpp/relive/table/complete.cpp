// Late columns: checked without the table lock, then written and published under it (rules L3, L4).
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "relive/pages/changed_rows.hpp"
#include "relive/pages/late.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/table/changing.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kRowsPerSection = 256;   // rows completed in one critical section (rule C3): at most 64 KiB
constexpr size_t kLooksPerSection = 512;  // rows that it reads for items that may be published now

// The place of a late column in a row of the table, and in a row of the caller's values.
struct LateCell {
  uint64_t offset, stride, num_bytes, given_at;
};

// The state of a key's row now. Exact under the lock.
enum class Found : uint32_t { kGone, kUnfilled, kFilled };

std::vector<LateCell> late_cells(const Region& r) {
  std::vector<LateCell> cells;
  uint64_t given_at = 0;
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    if (column.kind != ColumnKind::kLate) continue;
    cells.push_back({column.offset, column.stride, column.num_bytes, given_at});
    given_at += column.num_bytes;
  }
  return cells;
}

const char* late_name(const Region& r) {
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c)
    if (r.columns[c].kind == ColumnKind::kLate) return r.columns[c].name;
  return "";
}

Found find_row(const Region& r, int64_t key) {
  const uint64_t slot = r.key_slot(key), page = r.page_of(slot);
  const std::atomic<uint64_t>& word = r.words[page];
  const uint64_t seen = word.load(std::memory_order_acquire);
  if (!Region::is_used(seen) || Region::generation_of(seen) != r.key_generation(key)) return Found::kGone;
  const Range range = Range::unpack(r.pages[page].range.load(std::memory_order_acquire));  // stored after the head
  const uint32_t offset = r.offset_of(slot);
  if (offset < range.step_begin || offset >= range.step_end) return Found::kGone;
  // A row that became a tail is filled, as a deleted row is, because explicit items may have it (rules L4, X4).
  const bool is_tail = r.is_tail(page, offset);
  if (is_tail && !r.has_records()) return Found::kGone;
  if (load_head(r.page_base(page) + offset * r.geometry->record_stride) & kLateBit) return Found::kUnfilled;
  // Without the lock the page may have moved or gone meanwhile; then this was the head of another row.
  acquire_fence();
  if (word.load(kRelaxed) >> kStateBits != seen >> kStateBits) return Found::kUnfilled;
  return is_tail || is_removed(r, slot) ? Found::kGone : Found::kFilled;
}

// The first row of keys[begin .. end) that has its late columns already; `end` if none has.
size_t first_filled(const Region& r, const int64_t* keys, size_t begin, size_t end) {
  if (!RELIVE_RULE(L4_once)) return end;
  while (begin < end && find_row(r, keys[begin]) != Found::kFilled) ++begin;
  return begin;
}

Status already_completed(const Region& r, size_t position, int64_t key) {
  return Status(Code::kAlreadyCompleted)
      .with_int("position", static_cast<int64_t>(position))
      .with_int("key", key)
      .with_text("column", late_name(r));
}

// The checks that need no lock. Reading the rows also brings their memory into the caches, and their pages into this
// process.
Status check_rows(const Region& r, const int64_t* keys, size_t count, size_t num_bytes) {
  if (r.late_bytes == 0 || num_bytes != count * r.late_bytes)
    return Status(Code::kInvalidConfig)
        .with_text("what", "bytes of late columns")
        .with_int("expected", static_cast<int64_t>(count * r.late_bytes))
        .with_int("got", static_cast<int64_t>(num_bytes));
  for (size_t i = 0; i < count; ++i)
    if (!r.is_row_key(keys[i]))
      return Status(Code::kForeignKey).with_int("position", static_cast<int64_t>(i)).with_int("key", keys[i]);
  if (std::adjacent_find(keys, keys + count, std::greater_equal<>()) != keys + count) {
    std::vector<std::pair<int64_t, size_t>> sorted(count);
    for (size_t i = 0; i < count; ++i) sorted[i] = {keys[i], i};
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end(),
                                          [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != sorted.end()) return already_completed(r, (twice + 1)->second, twice->first);
  }
  const size_t filled = first_filled(r, keys, 0, count);
  return filled == count ? Status() : already_completed(r, filled, keys[filled]);
}

bool follows(const Region& r, int64_t key, int64_t last) {
  return key == last + 1 && r.offset_of(r.key_slot(key)) != 0;
}

// The rows of one critical section: more if few items can share rows with them, or if the rows follow each other.
size_t end_of_section(const Region& r, const int64_t* keys, size_t begin, size_t count) {
  const size_t looks_a_run = 2 * size_t{late_reach(r)} + 1;
  size_t looks = 0, end = begin;
  for (; end < std::min(count, begin + kRowsPerSection); ++end) {
    looks += end > begin && follows(r, keys[end], keys[end - 1]) ? 1 : looks_a_run;
    if (end > begin && looks > kLooksPerSection) break;
  }
  return end;
}

// First the cells, then the bit: a death in between leaves a row that still waits for its columns (rule L3).
void fill_row(Held& held, uint64_t slot, const std::vector<LateCell>& cells, const std::byte* given) {
  const Region& r = held.region;
  change_rows(held, r.page_of(slot), [&] {
    std::byte* const base = r.page_base(r.page_of(slot));
    if (!RELIVE_RULE(L3_cells_first)) r.head_of(slot).fetch_and(~kLateBit, std::memory_order_release);
    RELIVE_FAIL_POINT(late_begin);
    for (const LateCell& cell : cells)
      std::memcpy(base + cell.offset + r.offset_of(slot) * cell.stride, given + cell.given_at, cell.num_bytes);
    RELIVE_FAIL_POINT(late_cells);
    r.head_of(slot).fetch_and(~kLateBit, std::memory_order_release);
    RELIVE_FAIL_POINT(late_filled);
  });
}

// Fills rows [*begin, end) of the call, none of which is filled, and publishes the items that they complete. *begin:
// the row where the next critical section continues; that is before `end` if this one may look at no more items.
// Returns the number of rows that were there and not deleted.
int64_t fill_rows(Held& held, const int64_t* keys, size_t* begin, size_t end, const std::vector<LateCell>& cells,
                  const std::byte* given) {
  const Region& r = held.region;
  int64_t applied = 0;
  size_t& i = *begin;
  while (i < end && publish_rest(held)) {
    const size_t first = i;
    for (; i < end && (i == first || follows(r, keys[i], keys[i - 1])); ++i) {
      if (find_row(r, keys[i]) == Found::kGone) continue;
      const uint64_t slot = r.key_slot(keys[i]);
      fill_row(held, slot, cells, given + i * r.late_bytes);
      applied += is_removed(r, slot) || r.is_tail(r.page_of(slot), r.offset_of(slot)) ? 0 : 1;
    }
    const uint64_t slot = r.key_slot(keys[first]);
    if (Region::is_used(r.words[r.page_of(slot)].load(kRelaxed)))
      publish_filled(held, r.page_of(slot), r.offset_of(slot), static_cast<uint32_t>(i - first));
  }
  return applied;
}

}  // namespace

Status complete_rows(Table& table, const int64_t* keys, size_t count, const std::byte* given, size_t num_bytes,
                     int64_t* applied) {
  *applied = 0;
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = table.region();
  RELIVE_RETURN_IF_ERROR(check_rows(r, keys, count, num_bytes));
  const std::vector<LateCell> cells = late_cells(r);
  const Deadline deadline = table.own_deadline();
  Status status;
  size_t begin = 0;
  bool is_done = count == 0;
  while (!is_done && status.ok()) {
    const size_t end = end_of_section(r, keys, begin, count);
    Locked locked(table.door(), deadline);
    locked.drop_all_overdue();
    status = locked.status();
    if (!status.ok()) break;
    const size_t filled = first_filled(r, keys, begin, end);  // by another call, after the first check
    if (filled == end) *applied += fill_rows(locked.held(), keys, &begin, end, cells, given);
    is_done = publish_rest(locked.held()) && begin == count;
    locked.items_came();
    locked.release();
    RELIVE_FAIL_POINT(late_unlocked);
    if (filled != end) status = already_completed(r, filled, keys[filled]);
  }
  Counters& counters = r.header->counters;
  counters.completed.fetch_add(static_cast<uint64_t>(*applied), kRelaxed);
  counters.completions_stale.fetch_add(begin - static_cast<uint64_t>(*applied), kRelaxed);
  return status.ok() || *applied == 0 ? status : std::move(status).with_int("applied", *applied);
}

}  // namespace relive
