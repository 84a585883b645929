#include "relive/table/waiting.hpp"

#include <cstdint>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/words/limiter.hpp"

namespace relive {

std::string limiter_text(const Region& r, uint32_t index) {
  return limiter_text(r.header->indexes[index].name, r.limiter(index));
}

std::string limiter_text(const char* index_name, const LimiterConfig& limiter) {
  const std::string name = std::string("index ") + index_name + ": ";
  if (limiter.kind == LimiterConfig::kQueue)
    return name + "a queue of " + std::to_string(static_cast<int64_t>(limiter.hi)) + " items";
  if (limiter.kind == LimiterConfig::kStalenessBudget)
    return name +
           "inserted - removed unused <= (eta + version + 1) x items_per_version = " + std::to_string(limiter.hi);
  return name + "inserted x " + std::to_string(limiter.samples_per_insert) + " - sampled stays in [" +
         std::to_string(limiter.lo) + ", " + std::to_string(limiter.hi) + "], " + std::to_string(window(limiter)) +
         " samples wide; a row is worth " + std::to_string(limiter.samples_per_insert);
}

std::string massless_text(const Region& r, uint32_t index) {
  const int64_t live = r.header->index_state[index].live_items.load(std::memory_order_relaxed);
  if (live == 0 || Leaves(r, index).has_any()) return {};
  return "index " + std::string(r.header->indexes[index].name) + " with " + std::to_string(live) +
         " live items, whose mass (priority) is 0, every one, so that none can be drawn";
}

Status items_stand_error(const Deadline& deadline) {
  return Status(Code::kDeadlineExceeded)
      .with_text("needs", "the explicit items on the oldest rows to end, 256 in each critical section")
      .with_text("has", "some of them left")
      .with_double("waited_s", deadline.waited_s());
}

Sleeping::Sleeping(Table& table, const LimiterWait& wait, double waited_s)
    : words_(wait.is_for_room ? table.region().credit(table.participant(), wait.index).writer_wait
                              : table.region().credit(table.participant(), wait.index).sampler_wait) {
  const double since_s = clock_s() - waited_s;
  const auto asked = static_cast<uint32_t>(std::clamp<int64_t>(wait.num_items, 0, INT32_MAX));
  const bool is_first = words_.count.load(std::memory_order_relaxed) == 0;
  if (is_first || since_s < words_.since_s.load(std::memory_order_relaxed))
    words_.since_s.store(since_s, std::memory_order_relaxed);
  if (is_first || asked > words_.largest.load(std::memory_order_relaxed))
    words_.largest.store(asked, std::memory_order_relaxed);
  words_.count.fetch_add(1, std::memory_order_release);
}

Sleeping::~Sleeping() {
  if (epoch_ != fork_epoch()) return;  // a signal handler forked during the wait: the note is the parent's
  words_.since_s.store(std::numeric_limits<double>::infinity(), std::memory_order_relaxed);
  words_.largest.store(0, std::memory_order_relaxed);
  words_.count.fetch_sub(1, std::memory_order_release);
}

Code before_waiting(const Table& table, bool serves_itself) {
  if (only_thread_hook == nullptr || !table.is_alone() || !(serves_itself || table.is_local())) return Code::kOk;
  if (is_only_thread()) return Code::kWaitsForItself;
  return is_interrupted() ? Code::kInterrupted : Code::kOk;
}

Status drop_due(Table& table, const Deadline& deadline) {
  const Locked locked(table.door(), deadline);  // the items are dropped when the lock is released
  return locked.status();
}

Status after_slice(Table& table, double slept_s, const Deadline& deadline) {
  if (is_interrupted()) return Status(Code::kInterrupted);
  if (table.is_local() || slept_s <= kWaitSlice_s / 2) return {};
  Locked locked(table.door(), deadline);
  if (locked.status().ok()) (void)locked.sweep_dead();
  if (locked.status().code() == Code::kInterrupted) return locked.status();
  return {};
}

}  // namespace relive
