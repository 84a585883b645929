#include "relive/table/draw_waits.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "relive/table/credits.hpp"
#include "relive/table/waiting.hpp"
#include "relive/words/limiter.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

LimiterWait limiter_wait(const DrawCall& call) {
  Counters& counters = call.r.header->counters;
  return {call.r.header->items_event, counters.sampler_waits, counters.sampler_wait_ns, call.table.has_writers(), false,
          call.request.index,         call.num_items()};
}

// One slice of a wait for items and for the limiter.
Status wait_for_items(const DrawCall& call) {
  const uint32_t index = call.request.index;
  const Region& r = call.r;
  const uint64_t num_changes = r.header->index_state[index].limiter.num_changes();
  const auto ready = [&] {
    const LimiterConfig limiter = r.limiter(index);
    const LimiterCounts counts = r.drawn_counts(index, limiter);
    const bool may_pass = counts.live > 0 && call.has_any() && can_sample(limiter, counts, call.num_items());
    // After a change of the limiter the caller asks again whether the draw can ever pass (rule P1).
    return may_pass || num_changes != r.header->index_state[index].limiter.num_changes();
  };
  return wait_for_limiter(call.table, limiter_wait(call), call.deadline, ready,
                          [&](Code code) { return draw_error(call, code); });
}

// Wakes writers whose blocks do not fit the limiter's window together with this draw: they continue in parts.
void note_refused_draw(const DrawCall& call) {
  if (call.table.is_read_only()) return;
  std::atomic<int64_t>& noted = call.r.credit(call.table.participant(), call.request.index).refused_draw;
  int64_t largest = noted.load(kRelaxed);
  while (largest < call.num_items()) {
    if (!noted.compare_exchange_weak(largest, call.num_items(), kRelaxed)) continue;
    notify(&call.r.header->room_event);
    return;
  }
}

// kRequestTooLarge if the limiter, as it is now, can never admit the draw.
Status check_size(const DrawCall& call, const LimiterConfig& limiter) {
  if (call.is_distinct() && call.request.taken == nullptr) {
    const MostDistinct most = most_distinct(call.r, call.request.index, limiter);
    if (call.request.num_items > most.num_items)
      return Status(Code::kRequestTooLarge)
          .with_int("requested", call.num_items())
          .with_double("window", static_cast<double>(most.num_items))
          .with_text("none_twice", most.bound);
  }
  if (draw_always_moves(limiter, call.num_items())) return {};
  return Status(Code::kRequestTooLarge)
      .with_int("requested", call.num_items())
      .with_double("window", window(limiter))
      .with_text("arithmetic", limiter_text(call.r, call.request.index));
}

}  // namespace

Status reserve_draw(const DrawCall& call) {
  const Region& r = call.r;
  Table& table = call.table;
  const uint32_t index = call.request.index;
  const int64_t n = call.num_items();
  while (true) {
    if (table.is_closed()) return Status(Code::kTableClosed);
    const LimiterConfig limiter = r.limiter(index);  // again after each wait: it may have changed (rule P1)
    RELIVE_RETURN_IF_ERROR(check_size(call, limiter));
    if (table.is_read_only() && call.has_any()) return {};
    const int64_t live = r.header->index_state[index].live_items.load(kRelaxed);
    if (live > 0 && live >= limiter.min_size && call.has_any()) {
      if (!paces_draws(limiter)) {
        count_in_flight(table, index, n);
        RELIVE_FAIL_POINT(sample_reserved);
        return {};
      }
      Locked locked(table.door(), call.deadline);
      RELIVE_RETURN_IF_ERROR(locked.status());
      const LimiterConfig now = r.limiter(index);
      if (can_sample(now, r.drawn_counts(index, now), n)) {
        count_in_flight(table, index, n);
        RELIVE_FAIL_POINT(sample_reserved);
        locked.room_came();
        return {};
      }
    }
    if (paces_draws(limiter)) note_refused_draw(call);
    RELIVE_RETURN_IF_ERROR(wait_for_items(call));
  }
}

void note_lack(const DrawCall& call) {
  if (call.table.is_read_only() || call.request.where != nullptr) return;
  call.r.note_lack(call.request.index);
  note_refused_draw(call);
  notify(&call.r.header->room_event);
}

Status wait_for_unused(const DrawCall& call, bool* was_alone) {
  if (call.deadline.passed()) return draw_error(call, Code::kDeadlineExceeded);
  const Code code = before_waiting(call.table, true);
  if (code == Code::kInterrupted) return Status(code);
  const bool is_alone = code == Code::kWaitsForItself;
  if (std::exchange(*was_alone, is_alone) && is_alone) return draw_error(call, code);
  if (is_alone) return {};
  EventWords& event = call.r.header->items_event;
  const uint32_t seen = event.count.load();
  std::optional<Sleeping> sleeping;  // a read-only handle writes nothing
  if (!call.table.is_read_only()) {
    sleeping.emplace(call.table, limiter_wait(call), call.deadline.waited_s());
    event.waiters.store(1);
  }
  futex_wait(&event.count, seen, std::min(call.deadline.remaining_s(), kWaitSlice_s));
  return is_interrupted() ? Status(Code::kInterrupted) : Status();
}

Status draw_error(const DrawCall& call, Code code) {
  const Region& r = call.r;
  const uint32_t index = call.request.index;
  const int64_t n = call.num_items();
  const LimiterConfig limiter = r.limiter(index);
  const LimiterCounts counts = r.drawn_counts(index, limiter);
  const int64_t live = counts.live;
  std::string needs = std::to_string(std::max<int64_t>(limiter.min_size, 1)) + " live items";
  std::string has = std::to_string(live);
  if (live >= limiter.min_size && limiter.kind == LimiterConfig::kSamplesPerInsert && !can_sample(limiter, counts, n)) {
    needs = "inserted x " + std::to_string(limiter.samples_per_insert) +
            " - sampled >= " + std::to_string(limiter.lo + static_cast<double>(n));
    has = std::to_string(static_cast<double>(counts.inserted) * limiter.samples_per_insert -
                         static_cast<double>(counts.sampled));
  } else if (!can_sample(limiter, counts, n) && limiter.kind == LimiterConfig::kQueue) {
    needs = std::to_string(n) + " live items in the queue";
  } else if (call.is_distinct() && live < n) {
    needs = std::to_string(n) + " live items, for none comes twice in a batch";
  } else if (live >= limiter.min_size && !massless_text(r, index).empty()) {
    needs = "an item with a mass (a priority) above 0";
    has = massless_text(r, index);
  } else if (live >= limiter.min_size && live > 0) {
    needs = call.is_distinct() ? "items with a mass above 0, as many as the batch has, for none comes twice"
                               : "items with a mass above 0, enough of them unused for the batch";
  }
  return Status(code).with_text("needs", needs).with_text("has", has).with_double("waited_s", call.deadline.waited_s());
}

}  // namespace relive
