// The sampler: reserve, draw without the lock, gather, re-check, claim, commit (rules G1 to G8, I1).
#include <algorithm>
#include <optional>

#include "relive/index/leaves.hpp"
#include "relive/pages/hold.hpp"
#include "relive/read/draw.hpp"
#include "relive/table/table.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kRoundsWithoutLock = 8;
constexpr uint32_t kRoundsWithLock = 64;
constexpr size_t kChunk = 256;  // items chosen in one hold of the lock (rule C3)

DrawScratch& scratch() {
  thread_local DrawScratch mine;
  return mine;
}

Status deadline_error(const Region& r, uint32_t index, int64_t n, const Deadline& deadline, Code code) {
  const IndexConfig& config = r.header->indexes[index];
  const int64_t live = r.header->index_state[index].live_items.load(kRelaxed);
  std::string needs = std::to_string(std::max<int64_t>(config.limiter.min_size, 1)) + " live items";
  std::string has = std::to_string(live);
  const int64_t inserted = r.header->index_state[index].inserted.load(kRelaxed);
  if (live >= config.limiter.min_size && config.limiter.kind == LimiterConfig::kSamplesPerInsert &&
      !can_sample(config.limiter, live, inserted, r.sampled(index), n)) {
    needs = "inserted x " + std::to_string(config.limiter.samples_per_insert) +
            " - sampled >= " + std::to_string(config.limiter.lo + static_cast<double>(n));
    has = std::to_string(static_cast<double>(inserted) * config.limiter.samples_per_insert -
                         static_cast<double>(r.sampled(index)));
  } else if (live >= config.limiter.min_size && !massless_text(r, index).empty()) {
    needs = "an item with a mass (a priority) above 0";
    has = massless_text(r, index);
  } else if (live >= config.limiter.min_size && live > 0) {
    needs = "items with a mass above 0, enough of them unused for the batch";
  }
  return Status(code).with_text("needs", needs).with_text("has", has).with_double("waited_s", deadline.waited_s());
}

}  // namespace

std::string limiter_text(const IndexConfig& index) {
  const LimiterConfig& limiter = index.limiter;
  return std::string("index ") + index.name + ": inserted x " + std::to_string(limiter.samples_per_insert) +
         " - sampled stays in [" + std::to_string(limiter.lo) + ", " + std::to_string(limiter.hi) + "], " +
         std::to_string(window(limiter)) + " samples wide; a row is worth " +
         std::to_string(limiter.samples_per_insert);
}

std::string massless_text(const Region& r, uint32_t index) {
  const int64_t live = r.header->index_state[index].live_items.load(kRelaxed);
  if (live == 0 || Leaves(r, index).has_any()) return {};
  return "index " + std::string(r.header->indexes[index].name) + " with " + std::to_string(live) +
         " live items, whose mass (priority) is 0, every one, so that none can be drawn";
}

void Table::note_thread(std::atomic<uint64_t>* who) {
  if (who->load(kRelaxed) == 0) who->store(thread_id(), kRelaxed);
}

// One wait until the index may have something to draw. Sweeps the dead every slice.
Status Table::wait_for_items(uint32_t index, int64_t n, const Deadline& deadline) {
  Region& r = region_;
  const auto ready = [&] {
    const IndexState& state = r.header->index_state[index];
    const int64_t live = state.live_items.load(kRelaxed);
    return closed_.load(kRelaxed) ||
           (live > 0 && Leaves(r, index).has_any() &&
            can_sample(r.header->indexes[index].limiter, live, state.inserted.load(kRelaxed), r.sampled(index), n));
  };
  if (ready()) return {};
  if (deadline.passed()) return deadline_error(r, index, n, deadline, Code::kDeadlineExceeded);
  if (access_ == Access::kReadOnly) {
    futex_wait(&r.header->items_event.count, r.header->items_event.count.load(),
               std::min(deadline.remaining_s(), kWaitSlice_s));
    return {};
  }
  const bool writes_itself = open_writers_.load(kRelaxed) > 0;
  if (only_thread_hook != nullptr && is_alone() && (writes_itself || storage_->is_local()) && only_thread_hook())
    return deadline_error(r, index, n, deadline, Code::kWaitsForItself);
  r.header->counters.sampler_waits.fetch_add(1, kRelaxed);
  const double before = deadline.waited_s();
  wait_slice(&r.header->items_event, deadline, kWaitSlice_s, ready);
  r.header->counters.sampler_wait_ns.fetch_add(static_cast<uint64_t>((deadline.waited_s() - before) * 1e9), kRelaxed);
  if (is_interrupted()) return Status(Code::kInterrupted);
  if (!storage_->is_local() && deadline.waited_s() - before > kWaitSlice_s / 2) {
    Locked locked(door_, deadline);
    if (locked.status().ok()) locked.sweep_dead();
    if (locked.status().code() == Code::kInterrupted) return locked.status();
  }
  return {};
}

// Writers whose blocks do not fit the window beside this draw look again: they go on by parts.
void Table::note_refused_draw(uint32_t index, int64_t n, Locked* locked) {
  std::atomic<int64_t>& noted = region_.credit(me_, index).refused_draw;
  if (noted.load(kRelaxed) >= n) return;
  noted.store(n, kRelaxed);
  locked->room_came();
}

Status Table::reserve(uint32_t index, int64_t n, const Deadline& deadline) {
  Region& r = region_;
  const LimiterConfig& limiter = r.header->indexes[index].limiter;
  const IndexState& state = r.header->index_state[index];
  if (!draw_always_moves(limiter, n))
    return Status(Code::kRequestTooLarge)
        .with_int("requested", n)
        .with_double("window", window(limiter))
        .with_text("arithmetic", limiter_text(r.header->indexes[index]));
  while (true) {
    if (closed_.load(kRelaxed)) return Status(Code::kTableClosed);
    if (access_ == Access::kReadOnly && Leaves(r, index).has_any()) return {};
    const int64_t live = state.live_items.load(kRelaxed);
    if (live > 0 && live >= limiter.min_size && Leaves(r, index).has_any()) {
      if (limiter.kind == LimiterConfig::kMinSize) {
        count_in_flight(index, n);
        RELIVE_FAIL_POINT(sample_reserved);
        return {};
      }
      Locked locked(door_, deadline);
      RELIVE_RETURN_IF_ERROR(locked.status());
      if (can_sample(limiter, state.live_items.load(kRelaxed), state.inserted.load(kRelaxed), r.sampled(index), n)) {
        count_in_flight(index, n);
        RELIVE_FAIL_POINT(sample_reserved);
        locked.room_came();
        return {};
      }
      note_refused_draw(index, n, &locked);
    }
    RELIVE_RETURN_IF_ERROR(wait_for_items(index, n, deadline));
  }
}

Status Table::commit_held(uint32_t index, int64_t n) {
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  commit_credit(index, n);
  return {};
}

Status Table::return_held(uint32_t index, int64_t n) {
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  return_credit(index, n);
  return {};
}

void Table::commit_credit(uint32_t index, int64_t n) {
  if (access_ == Access::kReadOnly) return;
  Credit& credit = region_.credit(me_, index);
  credit.done.fetch_add(n, std::memory_order_relaxed);
  RELIVE_FAIL_POINT(sample_done_added);
  if (RELIVE_RULE(G6_in_flight)) credit.in_flight.fetch_sub(n, std::memory_order_acq_rel);
  RELIVE_FAIL_POINT(sample_in_flight);
}

void Table::return_credit(uint32_t index, int64_t n) {
  if (access_ == Access::kReadOnly || fork_epoch_.load(kRelaxed) != fork_epoch()) return;  // the parent's credit
  region_.credit(me_, index).in_flight.fetch_sub(n, std::memory_order_acq_rel);
  if (region_.header->indexes[index].limiter.kind != LimiterConfig::kMinSize) notify(&region_.header->items_event);
}

// One attempt at every draw that is still missing. False where the index has nothing to draw.
bool Table::draw_missing(const DrawRequest& request, uint64_t call, uint32_t attempt, DrawScratch& s) {
  Region& r = region_;
  const Leaves leaves(r, request.index);
  const double total = leaves.total();
  if (!leaves.is_mass(total)) return false;
  const CounterRng rng(r.geometry->seed, stream_, call, attempt);
  const uint64_t empty = draw_round(r, request, rng, total, &s);
  if (access_ == Access::kReadWrite && !s.still_missing.empty()) {
    r.header->counters.redraws_empty.fetch_add(empty, kRelaxed);
    r.header->counters.redraws_generation.fetch_add(s.still_missing.size() - empty, kRelaxed);
  }
  return true;
}

// Use counts: each item drawn this round is taken under the lock, or goes back among the missing (rule G7).
Status Table::claim(const DrawRequest& request, const Deadline& deadline, DrawScratch& s) {
  if (!takes_claims(request.index)) return {};
  if (RELIVE_RULE(G7_claim_in_lock)) {
    Locked locked(door_, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    claim_held(request, locked.held(), s);
  } else {
    Alone pretended(door_);
    claim_held(request, pretended.held(), s);
  }
  return {};
}

void Table::claim_held(const DrawRequest& request, Held& held, DrawScratch& s) {
  Region& r = region_;
  const Leaves leaves(r, request.index);
  const ItemMap& map = r.map(request.index);
  Window* const windows = s.windows.data();
  for (uint32_t j : s.missing) {
    Window& w = windows[j];
    if (!w.ok) continue;
    const bool same = Region::generation_of(map.word(w.slot)) == Region::generation_of(w.word);
    if (!same || !leaves.is_drawable(leaves.state(w.slot))) {
      w.ok = false;
      s.still_missing.push_back(j);
      r.header->counters.redraws_claimed.fetch_add(1, kRelaxed);
      continue;
    }
    const uint64_t page = r.page_of(w.slot);  // of a row's item
    if (r.bulk && request.is_planned) r.bulk.planned[page].fetch_add(1, kRelaxed);
    s.claimed.push_back({w.slot, w.word, leaves.mass(w.slot)});  // a priority may have come since the draw
    if (Leaves::use(held, request.index, w.slot) && !map.is_explicit) r.pages[page].live -= 1;
  }
}

// A batch that cannot be completed gives back what it claimed. An item that ended meanwhile stays ended.
void Table::undo_claims(const DrawRequest& request, const Deadline& deadline, DrawScratch& s) {
  Region& r = region_;
  if (s.claimed.empty()) return;
  Locked locked(door_, deadline.deaf());  // what was begun; where it is not to be had they count as used
  if (!locked.status().ok()) return;
  const ItemMap& map = r.map(request.index);
  for (const Claimed& c : s.claimed) {
    if (Region::generation_of(map.word(c.slot)) != Region::generation_of(c.word)) continue;
    const uint64_t page = r.page_of(c.slot);  // of a row's item
    if (r.bulk && request.is_planned) r.bulk.planned[page].fetch_sub(1, kRelaxed);
    if (Leaves::give_back(locked.held(), request.index, c.slot, c.mass) && !map.is_explicit) r.pages[page].live += 1;
  }
  s.claimed.clear();
}

Status Table::fill(const DrawRequest& request, uint64_t call, const Deadline& deadline, DrawScratch& s, bool* empty) {
  *empty = false;
  s.missing.resize(request.num_items);
  for (size_t j = 0; j < request.num_items; ++j) s.missing[j] = static_cast<uint32_t>(j);
  s.claimed.clear();
  const bool is_patient = access_ == Access::kReadOnly;  // it cannot hold pages
  for (uint32_t attempt = 0; !s.missing.empty(); ++attempt) {
    if (!is_patient && attempt >= RELIVE_ROUNDS(kRoundsWithoutLock))
      return fill_held(request, call, deadline, s, empty);
    if (is_patient && attempt >= kRoundsWithoutLock && deadline.passed())
      return deadline_error(region_, request.index, static_cast<int64_t>(request.num_items), deadline,
                            Code::kDeadlineExceeded);
    if (!draw_missing(request, call, attempt, s)) {
      *empty = true;
      return {};
    }
    RELIVE_RETURN_IF_ERROR(claim(request, deadline, s));
    s.missing.swap(s.still_missing);
  }
  return {};
}

// What the rounds without the lock did not bring: chosen (and claimed) under it, a few at a time, and read without it
// while this participant holds every page where it is, so that nothing that was chosen can go (rules G5, D7).
Status Table::fill_held(const DrawRequest& request, uint64_t call, const Deadline& deadline, DrawScratch& s,
                        bool* empty) {
  region_.header->counters.slow_draws.fetch_add(1, kRelaxed);
  DrawRequest choice = request;
  choice.plan = nullptr;
  Hold hold(door_, deadline);
  s.chosen.assign(s.missing.begin(), s.missing.end());
  const bool is_noted = request.plan != nullptr && is_noted_when_chosen(*request.plan);
  s.runs.clear();
  if (is_noted) s.runs.reserve(s.chosen.size() * region_.geometry->records[request.index].nodes_a_record());
  uint32_t attempt = kRoundsWithoutLock;
  for (size_t begin = 0; begin < s.chosen.size(); begin += kChunk) {
    const size_t end = std::min(s.chosen.size(), begin + kChunk);
    s.missing.clear();
    for (size_t k = begin; k < end; ++k) s.missing.push_back(s.chosen[k]);
    Locked locked(door_, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (request.plan != nullptr) hold.begin(locked);
    for (uint32_t round = 0; !s.missing.empty(); ++round) {
      if (round > kRoundsWithLock || !draw_missing(choice, call, attempt++, s)) {
        *empty = true;
        return {};
      }
      if (takes_claims(request.index)) claim_held(choice, locked.held(), s);
      Leaves::flush_all(locked.held());  // the next round descends by these sums
      s.missing.swap(s.still_missing);
    }
    if (is_noted) resolve(region_, *request.plan, s.windows.data(), s.chosen.data() + begin, end - begin, &s.runs);
  }
  if (request.plan != nullptr) *empty = !read_chosen(region_, request, &s);
  return {};
}

Status Table::sample(const DrawRequest& request, double timeout_s) {
  if (request.plan != nullptr && request.plan->needs_bulk && request.num_items > 0)
    return sample_tiered(request, timeout_s);
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const auto n = static_cast<int64_t>(request.num_items);
  if (n == 0) return {};
  note_thread(&sampling_thread_);
  DrawScratch& s = scratch();
  const ItemShape& shape = region_.shape(request.index);
  const size_t pages_a_window = region_.map(request.index).is_explicit
                                    ? region_.geometry->records[request.index].nodes_a_record()
                                    : (shape.before + shape.after()) / region_.page_len + 2;
  while (true) {
    RELIVE_RETURN_IF_ERROR(reserve(request.index, n, deadline));
    // A wait takes no number: the same calls draw the same items, however long each had to wait.
    const uint64_t call = calls_.fetch_add(1, kRelaxed);
    s.begin(CounterRng(region_.geometry->seed, stream_, call, 0), request.num_items, pages_a_window);
    bool empty = false;
    if (request.num_live_items != nullptr)  // as it is at the draw, before use counts take from it
      *request.num_live_items = std::max<int64_t>(1, num_items(request.index));
    Status status = fill(request, call, deadline, s, &empty);
    if (status.ok() && !empty) break;
    undo_claims(request, status.code() == Code::kInterrupted ? Deadline::after(0.0) : deadline, s);
    return_credit(request.index, n);
    (void)return_call(call);  // unless another thread of this handle has drawn since
    RELIVE_RETURN_IF_ERROR(std::move(status));
    if (deadline.passed()) return deadline_error(region_, request.index, n, deadline, Code::kDeadlineExceeded);
    // There is something, but not enough unused items for the whole batch: sleep until more come.
    if (only_thread_hook != nullptr && is_alone() && only_thread_hook())
      return deadline_error(region_, request.index, n, deadline, Code::kWaitsForItself);
    const uint32_t seen = region_.header->items_event.count.load();
    if (access_ == Access::kReadWrite) region_.header->items_event.waiters.store(1);
    futex_wait(&region_.header->items_event.count, seen, std::min(deadline.remaining_s(), kWaitSlice_s));
    if (is_interrupted()) return Status(Code::kInterrupted);
  }
  // A draw without a gather leaves its pages be: what was drawn for the last time is still to be read.
  if (request.plan != nullptr && region_.max_times(request.index) != 0 && access_ == Access::kReadWrite &&
      !region_.has_records()) {
    // Pages all of whose items are used up go back; in vain at worst, for the batch is there.
    Locked locked(door_, Deadline::after(kLeastLockWait_s).deaf());
    if (locked.status().ok()) {
      for (const Claimed& c : s.claimed) {
        const uint64_t page = region_.page_of(c.slot);
        if (Region::generation_of(region_.words[page].load(kRelaxed)) == Region::generation_of(c.word))
          free_if_lifeless(locked.held(), page);
      }
      locked.room_came();
    }
  }
  if (!request.hold) commit_credit(request.index, n);
  return {};
}

}  // namespace relive
