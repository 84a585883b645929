#include "relive/table/settings.hpp"

#include "relive/index/leaves.hpp"
#include "relive/read/distinct.hpp"
#include "relive/table/waiting.hpp"
#include "relive/words/config_check.hpp"

namespace relive {

std::vector<double> numbers_of(const LimiterConfig& limiter) {
  const auto kind = static_cast<double>(limiter.kind);
  switch (limiter.kind) {
    case LimiterConfig::kSamplesPerInsert:
      return {kind, limiter.samples_per_insert, static_cast<double>(limiter.min_size), limiter.tolerance};
    case LimiterConfig::kQueue:
      return {kind, limiter.hi};
    case LimiterConfig::kStalenessBudget:
      return {kind, limiter.eta, limiter.items_per_version};
    default:
      return {kind, static_cast<double>(limiter.min_size)};
  }
}

Status limiter_of(const double* numbers, size_t count, LimiterConfig* limiter) {
  constexpr size_t kCounts[] = {2, 4, 2, 3};  // numbers of each kind
  constexpr double kMost = 9007199254740992.0;
  const auto kind = count > 0 && numbers[0] >= 0.0 && numbers[0] <= 3.0 ? static_cast<size_t>(numbers[0]) : 4;
  if (kind == 4 || count != kCounts[kind])
    return invalid("limiter", "the numbers of a limiter, its kind first", static_cast<int64_t>(count));
  for (size_t k = 0; k < count; ++k)
    if (!(numbers[k] >= 0.0 && numbers[k] <= kMost))
      return Status(Code::kInvalidConfig)
          .with_text("what", "a number of the limiter")
          .with_text("expected", "a finite number >= 0")
          .with_double("got", numbers[k]);
  if (kind == LimiterConfig::kSamplesPerInsert)
    *limiter = make_samples_per_insert(numbers[1], static_cast<int64_t>(numbers[2]), numbers[3]);
  else if (kind == LimiterConfig::kQueue)
    *limiter = make_queue(static_cast<int64_t>(numbers[1]));
  else if (kind == LimiterConfig::kStalenessBudget)
    *limiter = make_staleness_budget(numbers[1], numbers[2]);
  else
    *limiter = make_min_size(static_cast<int64_t>(numbers[1]));
  return {};
}

Status set_limiter(Table& table, uint32_t index, const LimiterConfig& limiter) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Region& r = table.region();
  const IndexConfig& config = r.header->indexes[index];
  RELIVE_RETURN_IF_ERROR(check_limiter(config, limiter, r.geometry->capacity));
  const auto most = static_cast<int64_t>(most_distinct(r, index, limiter).num_items);
  int64_t refused = 0;
  {
    Locked locked(table.door(), table.own_deadline());
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (uint32_t p = 0; p < r.geometry->max_participants; ++p) {
      const WaitWords& wait = r.credit(p, index).sampler_wait;
      const int64_t asked = wait.largest.load(std::memory_order_relaxed);
      const bool may_pass = draw_always_moves(limiter, asked) && (!is_distinct(r, index) || asked <= most);
      if (wait.count.load(std::memory_order_acquire) > 0 && !may_pass && table.is_alive(p)) refused = asked;
    }
    if (refused == 0) {
      const LimiterCounts counts = r.inserted_counts(index, limiter, r.reserved_rows());
      r.header->index_state[index].limiter.store(begun_at(limiter, counts));
      locked.items_came();
      locked.room_came();
    }
  }
  if (refused == 0) return {};
  return Status(Code::kRequestTooLarge)
      .with_int("requested", refused)
      .with_double("window", window(limiter))
      .with_text("arithmetic", "a draw that waits now, under " + limiter_text(config.name, limiter));
}

namespace {

// Whether the version from which staleness budgets count moves with the version (rule P5). A learner that goes on at a
// late version beside an empty table gets the budget of one version, not of all versions before. One that goes back
// keeps what is left of its budget.
bool moves_base(const Region& r, uint32_t version) {
  if (!RELIVE_RULE(P5_base)) return false;
  uint32_t counted = 0;  // budgets are for indexes with use counts alone
  for (uint32_t i = 0; i < r.num_indexes; ++i) counted += r.max_times(i) != 0 ? 1 : 0;
  const bool is_empty = r.header->counters.appended.load(std::memory_order_relaxed) == 0;
  return counted > 0 && (is_empty || version < r.header->policy_version.load(std::memory_order_relaxed));
}

}  // namespace

Status set_policy_version(Table& table, uint32_t version) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = table.region();
  Header& header = *r.header;
  const Deadline deadline = table.own_deadline();
  if (moves_base(r, version)) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    const int64_t before = header.policy_version.load(std::memory_order_relaxed);
    if (moves_base(r, version)) header.base_version.fetch_add(int64_t{version} - before, std::memory_order_release);
    RELIVE_FAIL_POINT(version_base);
    header.policy_version.store(version, std::memory_order_release);
    locked.room_came();
  } else {
    header.policy_version.store(version, std::memory_order_release);
    notify(&header.room_event);  // staleness budgets grow with the version
  }
  if (r.aged_indexes().empty() && r.fading_indexes().empty()) return {};
  // Each critical section drops some of the items that are too old now (rule Z2); those of other callers help.
  do {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    locked.release();
    RELIVE_FAIL_POINT(version_swept);
  } while (has_expired(r));
  return {};
}

}  // namespace relive
