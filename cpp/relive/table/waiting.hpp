// Waiting for a limiter: samplers for items, writers for room. One slice at a time; the caller looks again in between.
//
// Locking: none while it sleeps. After a slice that came to its end the dead are swept, who may be what it waits for.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "relive/pages/expiry.hpp"
#include "relive/table/table.hpp"

namespace relive {

inline constexpr double kWaitSlice_s = 0.1;
inline constexpr double kLeastSlice_s = 0.001;  // until what waits longest is to go

// What an index's present limiter asks for, with its numbers; for errors.
std::string limiter_text(const Region& r, uint32_t index);
std::string limiter_text(const char* index_name, const LimiterConfig& limiter);
// Of an index that has live items and nothing to draw, since all their masses are 0: its name and how many; else empty.
std::string massless_text(const Region& r, uint32_t index);

// The deadline came while explicit items that stand on the oldest rows were being ended, as many as one hold may.
Status items_stand_error(const Deadline& deadline);

// Where one side waits, and what it counts.
struct LimiterWait {
  EventWords& event;
  std::atomic<uint64_t>& waits;
  std::atomic<uint64_t>& wait_ns;
  bool serves_itself;  // this handle has done the other side's work, too
  bool is_for_room;
  uint32_t index;     // whose limiter refuses
  int64_t num_items;  // that are asked for
};

// A thread of this participant that sleeps for a limiter, as stats() tells it (rule P3).
class Sleeping final {
 public:
  Sleeping(Table& table, const LimiterWait& wait, double waited_s);
  ~Sleeping();
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;

 private:
  WaitWords& words_;
};

// kWaitsForItself where nobody can end a wait of this thread but itself; kInterrupted where a signal came while that was
// asked, so that a call that has done some of its work can still say how much.
Code before_waiting(const Table& table, bool serves_itself);
// After a slice of the wait: a signal is told, the dead are swept where the slice came to its end.
Status after_slice(Table& table, double slept_s, const Deadline& deadline);

// What has waited too long goes, as much as one hold may drop: then look again.
Status drop_due(Table& table, const Deadline& deadline);

// Waits until ready(), a slice at most. error(code): what is said at the deadline, and to a thread that waits for itself.
template <class Ready, class Error>
Status wait_for_limiter(Table& table, const LimiterWait& wait, const Deadline& deadline, Ready&& ready, Error&& error) {
  const auto ends = [&] { return table.is_closed() || ready(); };
  if (ends()) return {};
  const double due_s = next_due_s(table.region());
  const double due_in_s = std::isinf(due_s) ? due_s : due_s - clock_s();
  if (due_in_s <= 0.0 && !table.is_read_only()) return drop_due(table, deadline);
  if (deadline.passed()) return error(Code::kDeadlineExceeded);
  if (table.is_read_only()) {  // it may not raise the flag of those who wait
    futex_wait(&wait.event.count, wait.event.count.load(), std::min(deadline.remaining_s(), kWaitSlice_s));
    return is_interrupted() ? Status(Code::kInterrupted) : Status();
  }
  const Code code = before_waiting(table, wait.serves_itself);
  if (code == Code::kInterrupted) return Status(code);
  // What is dropped makes room, and is nothing to draw.
  const bool time_helps = wait.is_for_room && due_in_s < deadline.remaining_s();
  if (code != Code::kOk && !time_helps) return error(code);
  wait.waits.fetch_add(1, std::memory_order_relaxed);
  const double before = deadline.waited_s();
  const Sleeping sleeping(table, wait, before);
  wait_slice(&wait.event, deadline, std::clamp(due_in_s, kLeastSlice_s, kWaitSlice_s), ends);
  const double slept_s = deadline.waited_s() - before;
  wait.wait_ns.fetch_add(static_cast<uint64_t>(slept_s * 1e9), std::memory_order_relaxed);
  return after_slice(table, slept_s, deadline);
}

}  // namespace relive
