// Waits for a limiter: a sampler waits for items, a writer for room. Each function waits for one slice of at most 0.1
// s; then the caller looks again.
//
// Owner:   a Sleeping notes its thread in the participant's credit for one slice; if the participant dies, a sweep
//          clears the note (rule E4).
// Locking: none while the thread sleeps. After a full slice the thread takes the table lock and sweeps dead processes,
//          because the items or the room that the thread waits for may be theirs.
// Cost:    a system call for each slice.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "relive/pages/expiry.hpp"
#include "relive/table/table.hpp"

namespace relive {

inline constexpr double kWaitSlice_s = 0.1;
inline constexpr double kLeastSlice_s = 0.001;  // until the item that has waited longest is due

// The inequality of an index's present limiter, with its numbers; for errors.
std::string limiter_text(const Region& r, uint32_t index);
std::string limiter_text(const char* index_name, const LimiterConfig& limiter);
// If an index has live items but nothing to draw, because all their masses are 0: its name and their number. Else
// empty.
std::string massless_text(const Region& r, uint32_t index);

// The deadline passed while the explicit items on the oldest rows were being ended, as many as one critical section may
// end.
Status items_stand_error(const Deadline& deadline);

// The event that one side waits for, and the counters of its waits.
struct LimiterWait {
  EventWords& event;
  std::atomic<uint64_t>& waits;
  std::atomic<uint64_t>& wait_ns;
  bool serves_itself;  // this handle also does the work of the other side
  bool is_for_room;
  uint32_t index;     // the index whose limiter refuses
  int64_t num_items;  // the number of items that the caller asks for
};

// Notes that a thread of this participant sleeps for a limiter; stats() reports it (rule P3).
class Sleeping final {
 public:
  Sleeping(Table& table, const LimiterWait& wait, double waited_s);
  ~Sleeping();
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;

 private:
  WaitWords& words_;
  const uint64_t epoch_ = fork_epoch();
};

// kWaitsForItself: no other thread or process could end the wait. A thread or process that could may have ended it and
// gone since the caller looked at the table: the caller looks once more before it reports the error. kInterrupted: a
// signal came while this was being found out; the caller reports how much of its work is done.
Code before_waiting(const Table& table, bool serves_itself);
// After a slice of the wait: reports a signal; sweeps dead processes if the thread slept for most of the slice.
Status after_slice(Table& table, double slept_s, const Deadline& deadline);

// Drops items that have waited too long, as many as one critical section may; then the caller looks again.
Status drop_due(Table& table, const Deadline& deadline);

// Waits until ready(), at most one slice. error(code) is returned at the deadline, and to a thread that waits for
// itself.
template <class Ready, class Error>
Status wait_for_limiter(Table& table, const LimiterWait& wait, const Deadline& deadline, Ready&& ready, Error&& error) {
  const auto ends = [&] { return table.is_closed() || ready(); };
  if (ends()) return {};
  const double due_s = next_due_s(table.region());
  const double due_in_s = std::isinf(due_s) ? due_s : due_s - clock_s();
  if (due_in_s <= 0.0 && !table.is_read_only()) return drop_due(table, deadline);
  if (deadline.passed()) return error(Code::kDeadlineExceeded);
  if (table.is_read_only()) {  // a read-only handle cannot raise the waiter flag
    futex_wait(&wait.event.count, wait.event.count.load(), std::min(deadline.remaining_s(), kWaitSlice_s));
    return is_interrupted() ? Status(Code::kInterrupted) : Status();
  }
  const Code code = before_waiting(table, wait.serves_itself);
  if (code == Code::kInterrupted) return Status(code);
  // A dropped item makes room for a writer; it gives a sampler nothing.
  const bool time_helps = wait.is_for_room && due_in_s < deadline.remaining_s();
  if (code != Code::kOk && !time_helps) return ends() ? Status() : error(code);
  wait.waits.fetch_add(1, std::memory_order_relaxed);
  const double before = deadline.waited_s();
  const Sleeping sleeping(table, wait, before);
  wait_slice(&wait.event, deadline, std::clamp(due_in_s, kLeastSlice_s, kWaitSlice_s), ends);
  const double slept_s = deadline.waited_s() - before;
  wait.wait_ns.fetch_add(static_cast<uint64_t>(slept_s * 1e9), std::memory_order_relaxed);
  return after_slice(table, slept_s, deadline);
}

}  // namespace relive
