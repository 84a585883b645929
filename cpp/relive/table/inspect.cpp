#include "relive/table/inspect.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void add_wait(const WaitWords& wait, double now_s, int64_t* count, int64_t* largest, double* longest_s) {
  const uint32_t threads = wait.count.load(std::memory_order_acquire);
  if (threads == 0) return;
  *count += threads;
  *largest = std::max<int64_t>(*largest, wait.largest.load(kRelaxed));
  *longest_s = std::max(*longest_s, now_s - wait.since_s.load(kRelaxed));
}

// A killed process leaves the note of its wait to a sweep: only participants whose life byte is taken count.
WaitStats waits_of(const Table& table, uint32_t index) {
  const Region& r = table.region();
  WaitStats stats;
  const double now_s = clock_s();
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p) {
    const bool may_wait = r.credit(p, index).sampler_wait.count.load(kRelaxed) != 0 ||
                          r.credit(p, index).writer_wait.count.load(kRelaxed) != 0;
    if (!may_wait || !table.is_alive(p)) continue;
    const Credit& credit = r.credit(p, index);
    add_wait(credit.sampler_wait, now_s, &stats.num_samplers, &stats.draw_size, &stats.sampler_wait_s);
    add_wait(credit.writer_wait, now_s, &stats.num_writers, &stats.insert_size, &stats.writer_wait_s);
  }
  const LimiterConfig limiter = r.limiter(index);
  const LimiterCounts counts = r.drawn_counts(index, limiter);
  if (stats.num_samplers > 0) {
    const bool is_filled = counts.live >= std::max<int64_t>(limiter.min_size, 1);
    stats.samplers_need = !is_filled ? "min_size" : can_sample(limiter, counts, stats.draw_size) ? "items" : "low";
  }
  if (stats.num_writers > 0)
    stats.writers_need = limiter.kind == LimiterConfig::kStalenessBudget ? "budget"
                         : limiter.kind == LimiterConfig::kQueue         ? "queue"
                                                                         : "high";
  const bool fits = limiter.kind == LimiterConfig::kStalenessBudget
                        ? r.header->index_state[index].drawable() >= stats.draw_size
                        : always_moves(limiter, stats.insert_size, stats.draw_size);
  stats.is_stuck = stats.num_samplers > 0 && stats.num_writers > 0 && !fits;
  return stats;
}

}  // namespace

uint64_t num_steps(const Table& table) {
  const Header& h = *table.region().header;
  return h.live_steps.load(kRelaxed) - h.removed_steps.load(kRelaxed);
}

int64_t num_items(const Table& table, uint32_t index) {
  return table.region().header->index_state[index].live_items.load(kRelaxed);
}

uint32_t policy_version(const Table& table) { return table.region().header->policy_version.load(kRelaxed); }

Status check(Table& table) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Locked locked(table.door(), table.own_deadline());
  RELIVE_RETURN_IF_ERROR(locked.status());
  const Broken broken = broken_invariant(table.region(), table.door().scratch);
  locked.release();
  return broken ? Status(Code::kCheckFailed).with_text("invariant", broken.text()) : Status();
}

Status stats(Table& table, TableStats* out) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = table.region();
  const Header& h = *r.header;
  out->num_steps = num_steps(table);
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p)
    out->num_participants += r.participants[p].live.load(kRelaxed);
  for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane)
    out->num_open_lanes += r.lanes[lane].state.load(kRelaxed) == LaneState::kLive ? 1 : 0;
  out->num_free_pages = h.num_free_pages.load(kRelaxed);
  out->num_pages = r.geometry->num_pages;
  out->frames_committed = h.frames_committed.load(kRelaxed);
  out->frames_used = out->frames_committed - h.num_free_frames.load(kRelaxed);
  out->bytes_committed = r.geometry->slabs_offset + out->frames_committed * r.geometry->frame_bytes;
  if (r.cells) out->bytes_committed += r.cells.state->committed.load(kRelaxed) * r.cells.geometry->stride;
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const IndexState& state = h.index_state[i];
    out->live_items.push_back(state.live_items.load(kRelaxed));
    out->pending.push_back(state.pending.load(kRelaxed));
    out->timed_out.push_back(static_cast<int64_t>(state.timed_out.load(kRelaxed)));
    out->crowded_out.push_back(i == 0 && r.chooses_pages() ? state.next_item.load(kRelaxed) : 0);
    out->expired.push_back(static_cast<int64_t>(state.expired.load(kRelaxed)));
    out->filtered.push_back(static_cast<int64_t>(state.filtered.load(kRelaxed)));
    out->inserted.push_back(state.inserted.load(kRelaxed));
    out->sampled.push_back(r.sampled(i));
    int64_t in_flight = 0;
    for (uint32_t p = 0; p < r.geometry->max_participants; ++p) in_flight += r.credit(p, i).in_flight.load(kRelaxed);
    out->in_flight.push_back(in_flight);
    out->total_mass.push_back(Leaves(r, i).total());
    out->waits.push_back(waits_of(table, i));
    out->limiters.push_back(state.limiter.load());
    out->max_priority.push_back(state.max_priority.load(kRelaxed));
  }
  const Counters& c = h.counters;
  const auto add = [out](const char* name, const std::atomic<uint64_t>& value) {
    out->counters.emplace_back(name, value.load(kRelaxed));
  };
  add("appended", c.appended);
  add("evicted", c.evicted);
  add("pool_pressure", c.pool_pressure);
  add("early_freed", c.early_freed);
  add("deleted", c.deleted);
  add("cut_lanes", c.cut_lanes);
  add("skipped_items", c.skipped_items);
  add("updates_applied", c.updates_applied);
  add("updates_stale", c.updates_stale);
  add("redraws_generation", c.redraws_generation);
  add("redraws_empty", c.redraws_empty);
  add("redraws_claimed", c.redraws_claimed);
  add("slow_draws", c.slow_draws);
  add("recoveries", c.recoveries);
  add("swept", c.swept);
  add("sampler_waits", c.sampler_waits);
  add("writer_waits", c.writer_waits);
  add("sampler_wait_ns", c.sampler_wait_ns);
  add("writer_wait_ns", c.writer_wait_ns);
  add("completed", c.completed);
  add("completions_stale", c.completions_stale);
  add("incomplete_items", c.incomplete_items);
  add("dropped_groups", c.dropped_groups);
  return {};
}

}  // namespace relive
