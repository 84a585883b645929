// Explicit items come: checked, admitted by their limiter, and made under the lock, 256 a hold (rules X2, X7).
#include <algorithm>
#include <cmath>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/waiting.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

Status refused(Code code, size_t item, uint32_t window, int64_t key) {
  return Status(code).with_int("item", static_cast<int64_t>(item)).with_int("window", window).with_int("key", key);
}

Status too_much(const char* what, const char* expected, int64_t got, size_t item) {
  return Status(Code::kInvalidConfig)
      .with_text("what", what)
      .with_text("expected", expected)
      .with_int("got", got)
      .with_int("item", static_cast<int64_t>(item));
}

// The first window of an item whose rows are not there, num_windows where all are. Exact under the lock.
uint32_t first_gone(const Region& r, const WindowRows* windows, uint32_t num_windows) {
  uint32_t w = 0;
  while (w < num_windows && are_steps_there(r, windows[w])) ++w;
  return w;
}

// All that can be said without the lock; whether rows are there is asked again under it.
Status check_items(const Region& r, uint32_t index, const NewItems& items) {
  if (index >= r.num_indexes || !r.map(index).is_explicit)
    return too_much("index", "one whose items are inserted (explicit)", index, 0);
  const RecordGeometry& records = r.geometry->records[index];
  if (items.priorities != nullptr && !Leaves(r, index).kind().has_priorities)
    return Status(Code::kNoPriorities).with_text("index", r.header->indexes[index].name);
  const WindowRows* windows = items.windows;
  for (size_t k = 0; k < items.num_items; windows += items.num_windows[k], ++k) {
    const uint32_t num_windows = items.num_windows[k];
    if (num_windows < 1 || num_windows > records.max_windows)
      return too_much("windows of an item", "1 to max_windows", num_windows, k);
    for (uint32_t w = 0; w < num_windows; ++w) {
      if (windows[w].num_rows < 1 || windows[w].num_rows > records.max_rows)
        return too_much("rows of a window", "1 to max_rows", windows[w].num_rows, k);
      if (!r.is_row_key(windows[w].key)) return refused(Code::kForeignKey, k, w, windows[w].key);
    }
    if (const uint32_t w = first_gone(r, windows, num_windows); w < num_windows)
      return refused(Code::kRowGone, k, w, windows[w].key);
    if (items.priorities == nullptr) continue;
    const float priority = items.priorities[k];
    if (!(priority >= 0.0f) || !std::isfinite(priority))
      return Status(Code::kInvalidPriority)
          .with_int("position", static_cast<int64_t>(k))
          .with_double("value", priority);
  }
  return {};
}

// One wait until the index's limiter lets an item in. Items come one by one where it must be, so whoever draws what
// draw_always_moves() accepts and whoever inserts never wait for each other.
Status wait_for_room(Table& table, uint32_t index, const Deadline& deadline) {
  Region& r = table.region();
  const IndexConfig& config = r.header->indexes[index];
  const IndexState& state = r.header->index_state[index];
  const auto ready = [&] {
    return can_insert(config.limiter, state.live_items.load(kRelaxed), state.inserted.load(kRelaxed), r.sampled(index),
                      1);
  };
  Counters& counters = r.header->counters;
  const LimiterWait wait{r.header->room_event, counters.writer_waits, counters.writer_wait_ns, table.has_sampled()};
  return wait_for_limiter(table, wait, deadline, ready, [&](Code code) {
    return Status(code)
        .with_text("needs", limiter_text(config))
        .with_int("has", state.inserted.load(kRelaxed))
        .with_double("waited_s", deadline.waited_s());
  });
}

// What a hold came to: items stored, or why it stopped. A plain value, for under the lock nothing is allocated.
struct Inserted {
  Code code = Code::kOk;
  uint32_t window = 0;  // of kRowGone
};

// One hold: as many items as the limiter lets in and as one hold may end (an item takes the place of the oldest). *at
// goes on over the windows; stops at an item whose rows went meanwhile.
Inserted insert_held(Held& held, uint32_t index, const NewItems& items, const WindowRows** at, int64_t* keys,
                     size_t* stored) {
  const Region& r = held.region;
  const IndexState& state = r.header->index_state[index];
  const auto left = static_cast<int64_t>(items.num_items - *stored);
  const int64_t admitted = most_insertable(r.header->indexes[index].limiter, state.live_items.load(kRelaxed),
                                           state.inserted.load(kRelaxed), r.sampled(index), left);
  for (int64_t k = 0; k < admitted; ++k) {
    const uint32_t num_windows = items.num_windows[*stored];
    if (const uint32_t w = first_gone(r, *at, num_windows); w < num_windows) return {Code::kRowGone, w};
    const uint64_t record = take_record(held, index);
    if (record == kNoRecord) return {held.ends_left == 0 ? Code::kOk : Code::kDeadlineExceeded, 0};
    const float given =
        items.priorities != nullptr ? items.priorities[*stored] : std::numeric_limits<float>::quiet_NaN();
    bool is_item = false;
    keys[*stored] = fill_record(held, index, record, *at, num_windows, given, &is_item);
    if (is_item) Leaves::count_published(held, index, 1);
    RELIVE_FAIL_POINT(insert_counted);
    *at += num_windows;
    *stored += 1;
  }
  return {};
}

// Why a hold stopped, in words, behind the lock.
Status why_stopped(const Inserted& inserted, size_t item, const WindowRows* windows, const Deadline& deadline) {
  if (inserted.code == Code::kOk) return {};
  if (inserted.code == Code::kRowGone)
    return refused(Code::kRowGone, item, inserted.window, windows[inserted.window].key);
  return Status(inserted.code)
      .with_text("needs", "a record with a generation to come")
      .with_text("has", "every record retired")
      .with_double("waited_s", deadline.waited_s());
}

}  // namespace

Status items_stand_error(const Deadline& deadline) {
  return Status(Code::kDeadlineExceeded)
      .with_text("needs", "the explicit items on the oldest rows to end, 256 in one hold of the lock")
      .with_text("has", "some of them left")
      .with_double("waited_s", deadline.waited_s());
}

Status insert_items(Table& table, uint32_t index, const NewItems& items, double timeout_s, int64_t* keys,
                    size_t* stored) {
  *stored = 0;
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  RELIVE_RETURN_IF_ERROR(check_items(table.region(), index, items));
  float largest = 0.0f;
  for (size_t k = 0; items.priorities != nullptr && k < items.num_items; ++k)
    largest = std::max(largest, items.priorities[k]);
  const WindowRows* at = items.windows;
  Status status;
  while (*stored < items.num_items && status.ok()) {
    const size_t before = *stored;
    if (table.is_closed()) status = Status(Code::kTableClosed);
    if (status.ok()) {
      Locked locked(table.door(), deadline);
      status = locked.status();
      if (status.ok() && before == 0) note_priority(locked.held(), index, largest);
      Inserted inserted;
      if (status.ok()) inserted = insert_held(locked.held(), index, items, &at, keys, stored);
      if (*stored > before) locked.items_came();
      locked.release();
      if (status.ok()) status = why_stopped(inserted, *stored, at, deadline);
    }
    if (status.ok() && *stored == before) {
      status = wait_for_room(table, index, deadline);
      if (status.ok() && deadline.passed()) status = items_stand_error(deadline);
    }
  }
  if (status.ok() || *stored == 0) return status;
  return std::move(status)
      .with_int("stored", static_cast<int64_t>(*stored))
      .with_int("num_items", static_cast<int64_t>(items.num_items));
}

}  // namespace relive
