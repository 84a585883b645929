// Explicit items: checked, admitted by their limiter, and made under the table lock, at most 256 at a time (rules X2,
// X7).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "relive/index/leaves.hpp"
#include "relive/pages/late.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/waiting.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The fault of an item, or kNothing. A plain value: no text is made under the lock (rule C4). window: of the index.
struct Wrong {
  WhyNot why = WhyNot::kNothing;
  uint32_t window = 0;
};

Status too_much(std::string what, std::string expected, int64_t got, size_t item) {
  return Status(Code::kInvalidConfig)
      .with_text("what", std::move(what))
      .with_text("expected", std::move(expected))
      .with_int("got", got)
      .with_int("item", static_cast<int64_t>(item));
}

const WindowRows* windows_of(const Region& r, uint32_t index, const NewItems& items, size_t item) {
  return items.windows + item * r.geometry->records[index].max_windows;
}

// Whether rows that the caller named one by one are compared. That is done once a call, without the lock: a page's
// links do not change while the page lives, so a window that is found again under the lock, by its first row, has these
// rows.
enum class Named : uint32_t { kChecked, kTrusted };

// Finds the rows of all windows of an item. Returns the first fault. Exact under the lock.
Wrong find_windows(const Region& r, uint32_t index, const WindowRows* asked, Named named, NewRecord* found) {
  const Records& records = r.records[index];
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
    WindowRows window = asked[w];
    if (named == Named::kTrusted) window.rows = nullptr;
    found->windows[w] = find_window(r, records.shapes[w], window);
    if (found->windows[w].why != WhyNot::kNothing) return {found->windows[w].why, w};
  }
  return {};
}

Status wrong_error(const Region& r, uint32_t index, const NewItems& items, size_t item, const Wrong& wrong) {
  const bool is_gone = wrong.why <= WhyNot::kTail;
  return Status(is_gone ? Code::kRowGone : Code::kRowsApart)
      .with_int("item", static_cast<int64_t>(item))
      .with_text("window", r.records[index].shapes[wrong.window].name)
      .with_int("key", windows_of(r, index, items, item)[wrong.window].key)
      .with_text("why", words_of(wrong.why));
}

// The keys and numbers that the caller gave for one window.
Status check_window(const Region& r, const WindowConfig& shape, const WindowRows& asked, size_t item) {
  const int64_t length = shape.length;
  if (asked.num_rows < -length || asked.num_rows > length)
    return too_much(shape.name[0] == 0 ? "rows of a window" : "rows of window '" + std::string(shape.name) + "'",
                    "at most " + std::to_string(length), asked.num_rows, item);
  const auto refused = [&](int64_t key) {
    return Status(Code::kForeignKey)
        .with_int("position", static_cast<int64_t>(item))
        .with_int("key", key)
        .with_text("window", shape.name);
  };
  if (asked.num_rows != 0 && !r.is_row_key(asked.key)) return refused(asked.key);
  for (int64_t row = 0; asked.rows != nullptr && row < std::abs(asked.num_rows); ++row)
    if (!r.is_row_key(asked.rows[row])) return refused(asked.rows[row]);
  return {};
}

// The checks that need no lock. Whether the rows are there is asked again under it.
Status check_items(const Region& r, uint32_t index, const NewItems& items) {
  if (index >= r.num_indexes || !r.map(index).is_explicit || r.records[index].are_groups())
    return too_much("index", "one whose items are inserted (explicit)", index, 0);
  const Records& records = r.records[index];
  const uint32_t num_windows = records.geometry->max_windows;
  if (items.priorities != nullptr && !Leaves(r, index).has_priorities())
    return Status(Code::kNoPriorities).with_text("index", r.header->indexes[index].name);
  NewRecord found;
  for (size_t k = 0; k < items.num_items; ++k) {
    const WindowRows* const windows = windows_of(r, index, items, k);
    bool has_window = false;
    for (uint32_t w = 0; w < num_windows; ++w) {
      RELIVE_RETURN_IF_ERROR(check_window(r, records.shapes[w], windows[w], k));
      has_window |= windows[w].num_rows != 0;
    }
    if (!has_window) return too_much("windows of an item", "at least one with a row", 0, k);
    if (const Wrong wrong = find_windows(r, index, windows, Named::kChecked, &found); wrong.why != WhyNot::kNothing)
      return wrong_error(r, index, items, k, wrong);
    if (items.priorities == nullptr) continue;
    const float priority = items.priorities[k];
    if (!(priority >= 0.0f) || !std::isfinite(priority))
      return Status(Code::kInvalidPriority)
          .with_int("position", static_cast<int64_t>(k))
          .with_double("value", priority);
  }
  return {};
}

// One slice of a wait for the index's limiter. Items are admitted one by one if they must be, so an insert and a draw
// that draw_always_moves() accepts never wait for each other.
Status wait_for_room(Table& table, uint32_t index, const Deadline& deadline) {
  Region& r = table.region();
  const auto ready = [&] {
    const LimiterConfig limiter = r.limiter(index);
    return can_insert(limiter, r.inserted_counts(index, limiter, 0), 1);
  };
  Counters& counters = r.header->counters;
  const LimiterWait wait{
      r.header->room_event, counters.writer_waits, counters.writer_wait_ns, table.has_sampled(), true, index, 1};
  return wait_for_limiter(table, wait, deadline, ready, [&](Code code) {
    return Status(code)
        .with_text("needs", limiter_text(r, index))
        .with_int("has", r.inserted_counts(index, r.limiter(index), 0).inserted)
        .with_double("waited_s", deadline.waited_s());
  });
}

// Why a critical section stopped. A plain value: no memory is allocated under the lock (rule C4).
struct Inserted {
  bool is_used_up = false;  // no record has a generation to come
  Wrong wrong;
  bool items_stand = false;  // it has ended as many items as one critical section may
};

// One critical section: as many items as the limiter admits, and as it may end, since a new item takes the place of the
// oldest one. Stops at an item whose rows went meanwhile.
Inserted insert_locked(Held& held, uint32_t index, const NewItems& items, int64_t* keys, size_t* stored) {
  const Region& r = held.region;
  (void)publish_rest(held);  // left by a process that died while it completed rows
  const auto left = static_cast<int64_t>(items.num_items - *stored);
  const LimiterConfig limiter = r.limiter(index);
  const int64_t admitted = most_insertable(limiter, r.inserted_counts(index, limiter, 0), left);
  NewRecord found;
  found.columns = items.columns;
  for (int64_t k = 0; k < admitted; ++k) {
    const Wrong wrong = find_windows(r, index, windows_of(r, index, items, *stored), Named::kTrusted, &found);
    if (wrong.why != WhyNot::kNothing) return {false, wrong, false};
    const uint64_t record = take_record(held, index);
    if (record == kNoRecord) return {held.ends_left != 0, {}, held.ends_left == 0};
    found.position = *stored;
    found.given = items.priorities != nullptr ? items.priorities[*stored] : std::numeric_limits<float>::quiet_NaN();
    bool is_item = false;
    keys[*stored] = fill_record(held, index, record, found, &is_item);
    if (is_item) Leaves::count_published(held, index, 1);
    RELIVE_FAIL_POINT(insert_counted);
    keep_a_record_free(held, index);
    *stored += 1;
  }
  return {};
}

// The error of a call that can not continue, worded after the lock was released.
Status used_up_error(const Deadline& deadline) {
  return Status(Code::kDeadlineExceeded)
      .with_text("needs", "a record with a generation to come")
      .with_text("has", "every record retired")
      .with_double("waited_s", deadline.waited_s());
}

}  // namespace

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
  Status status;
  while (*stored < items.num_items && status.ok()) {
    const size_t before = *stored;
    Inserted inserted;
    if (table.is_closed()) status = Status(Code::kTableClosed);
    if (status.ok()) {
      Locked locked(table.door(), deadline);
      status = locked.status();
      if (status.ok() && before == 0) note_priority(locked.held(), index, largest);
      if (status.ok()) inserted = insert_locked(locked.held(), index, items, keys, stored);
      if (*stored > before) locked.items_came();
      locked.release();
      if (inserted.is_used_up) status = used_up_error(deadline);
      if (inserted.wrong.why != WhyNot::kNothing)
        status = wrong_error(table.region(), index, items, *stored, inserted.wrong);
    }
    if (status.ok() && *stored == before) {
      status = wait_for_room(table, index, deadline);
      if (status.ok() && inserted.items_stand && deadline.passed()) status = items_stand_error(deadline);
    }
  }
  if (status.ok() || *stored == 0) return status;
  return std::move(status)
      .with_int("stored", static_cast<int64_t>(*stored))
      .with_int("num_items", static_cast<int64_t>(items.num_items));
}

}  // namespace relive
