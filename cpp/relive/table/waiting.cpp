#include "relive/table/waiting.hpp"

#include "relive/index/leaves.hpp"
#include "relive/words/limiter.hpp"

namespace relive {

std::string limiter_text(const IndexConfig& index) {
  const LimiterConfig& limiter = index.limiter;
  return std::string("index ") + index.name + ": inserted x " + std::to_string(limiter.samples_per_insert) +
         " - sampled stays in [" + std::to_string(limiter.lo) + ", " + std::to_string(limiter.hi) + "], " +
         std::to_string(window(limiter)) + " samples wide; a row is worth " +
         std::to_string(limiter.samples_per_insert);
}

std::string massless_text(const Region& r, uint32_t index) {
  const int64_t live = r.header->index_state[index].live_items.load(std::memory_order_relaxed);
  if (live == 0 || Leaves(r, index).has_any()) return {};
  return "index " + std::string(r.header->indexes[index].name) + " with " + std::to_string(live) +
         " live items, whose mass (priority) is 0, every one, so that none can be drawn";
}

Code before_waiting(const Table& table, bool serves_itself) {
  if (only_thread_hook == nullptr || !table.is_alone() || !(serves_itself || table.is_local())) return Code::kOk;
  if (is_only_thread()) return Code::kWaitsForItself;
  return is_interrupted() ? Code::kInterrupted : Code::kOk;
}

Status drop_due(Table& table, const Deadline& deadline) {
  const Locked locked(table.door(), deadline);  // whoever gives it back drops them
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
