#include "relive/table/draws.hpp"

#include <algorithm>
#include <optional>

#include "relive/index/fresh_masses.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/pin_all.hpp"
#include "relive/read/where.hpp"
#include "relive/table/claims.hpp"
#include "relive/table/credits.hpp"
#include "relive/table/waiting.hpp"
#include "relive/words/limiter.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kRoundsWithoutLock = 8;
constexpr uint32_t kRoundsWithLock = 64;
constexpr double kChangeSlice_s = 0.001;
constexpr uint32_t kChangesBorne = 8;  // of the exponent in one draw, whatever its deadline
constexpr size_t kChunk = 256;         // items chosen in one hold of the lock (rule C3)

Status deadline_error(const Region& r, uint32_t index, int64_t n, const Deadline& deadline, Code code) {
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
  } else if (is_distinct(r, index) && live < n) {
    needs = std::to_string(n) + " live items, for none comes twice in a batch";
  } else if (live >= limiter.min_size && !massless_text(r, index).empty()) {
    needs = "an item with a mass (a priority) above 0";
    has = massless_text(r, index);
  } else if (live >= limiter.min_size && live > 0) {
    needs = is_distinct(r, index) ? "items with a mass above 0, as many as the batch has, for none comes twice"
                                  : "items with a mass above 0, enough of them unused for the batch";
  }
  return Status(code).with_text("needs", needs).with_text("has", has).with_double("waited_s", deadline.waited_s());
}

// One draw: what is asked for, where it goes and what of it is still missing.
class Draw final {
 public:
  Draw(Table& table, const DrawRequest& request, const Deadline& deadline, DrawScratch& scratch)
      : table_(table),
        r_(table.region()),
        request_(request),
        deadline_(deadline),
        s_(scratch),
        first_(request),
        has_exponent_(has_exponent(r_.header->indexes[request.index])) {
    if (request.ragged == nullptr) return;
    first_.plan = &request.ragged->lengths_plan();
    first_.ragged = nullptr;
  }
  Status run();
  Status run_own();

 private:
  int64_t num_items() const { return static_cast<int64_t>(request_.num_items); }
  void forget(const std::vector<uint32_t>& items) {
    for (uint32_t j : items) request_.ragged->forget(j);
  }
  bool takes_claims() const { return r_.max_times(request_.index) != 0 && !table_.is_read_only(); }
  // Who says what is drawn asks for nobody's mass.
  bool has_any() const { return request_.taken != nullptr || Leaves(r_, request_.index).has_any(); }
  bool is_by_order() const { return Leaves(r_, request_.index).kind().choice == Choice::kBest; }
  bool is_shuffled() const { return (r_.header->indexes[request_.index].traits & kIsShuffled) != 0; }
  bool is_distinct() const { return relive::is_distinct(r_, request_.index); }
  bool is_sifted() const { return request_.where != nullptr || is_distinct(); }
  bool is_queue() const { return r_.limiter(request_.index).kind == LimiterConfig::kQueue; }
  Status late(Code code) const { return deadline_error(r_, request_.index, num_items(), deadline_, code); }
  LimiterWait wait();
  Status wait_for_items();
  void note_refused_draw(Locked* locked);
  Status reserve();
  Status fill_of_one_exponent(bool* empty);
  Status fill(bool* empty);
  Status look_on();
  Status fill_held(bool* empty, uint32_t attempt);
  Status find_held(const DrawRequest& choice, bool is_noted, size_t begin, size_t end, uint32_t* attempt, bool* empty);
  bool drop_gone();
  void ask_for_all();
  Status read_held(bool* empty);
  bool draw_missing(const DrawRequest& request, uint32_t attempt);
  Status read_rows();
  Status claim();
  void claim_held(Held& held);
  void undo_claims(const Deadline& deadline);
  Status outwait_change();
  void forget_round();
  bool is_behind(const Leaves& leaves, uint64_t num_wanted) const;
  void give_back_turns();
  Status claim_own(int64_t* num_taken);
  Status give_up(Status status);
  Status wait_for_unused();

  Table& table_;
  Region& r_;
  const DrawRequest& request_;
  const Deadline& deadline_;
  DrawScratch& s_;
  DrawRequest first_;  // what a round reads of what it draws: all of it, or where items lie end to end their lengths
  const bool has_exponent_;         // which may be changed meanwhile
  uint64_t first_raised_ = 0;       // how often it had been, when the batch had nothing yet
  uint64_t last_raised_ = 0;        // and when the last round began
  uint64_t call_ = 0;               // its number, which its random numbers follow from
  std::optional<Hearing> hearing_;  // of one that looks on and on
};

LimiterWait Draw::wait() {
  Counters& counters = r_.header->counters;
  return {r_.header->items_event,
          counters.sampler_waits,
          counters.sampler_wait_ns,
          table_.has_writers(),
          false,
          request_.index,
          num_items()};
}

// One wait until the index may have something to draw.
Status Draw::wait_for_items() {
  const uint64_t num_changes = r_.header->index_state[request_.index].limiter.num_changes();
  const auto ready = [&] {
    const LimiterConfig limiter = r_.limiter(request_.index);
    const LimiterCounts counts = r_.drawn_counts(request_.index, limiter);
    const bool may_pass = counts.live > 0 && has_any() && can_sample(limiter, counts, num_items());
    return may_pass || num_changes != r_.header->index_state[request_.index].limiter.num_changes();  // judged anew
  };
  return wait_for_limiter(table_, this->wait(), deadline_, ready, [&](Code code) { return late(code); });
}

// Writers whose blocks do not fit the window beside this draw look again: they go on by parts.
void Draw::note_refused_draw(Locked* locked) {
  std::atomic<int64_t>& noted = r_.credit(table_.participant(), request_.index).refused_draw;
  if (noted.load(kRelaxed) >= num_items()) return;
  noted.store(num_items(), kRelaxed);
  locked->room_came();
}

Status Draw::reserve() {
  const uint32_t index = request_.index;
  const int64_t n = num_items();
  while (true) {
    if (table_.is_closed()) return Status(Code::kTableClosed);
    const LimiterConfig limiter = r_.limiter(index);  // anew after each wait: it may have been changed (rule P1)
    if (is_distinct() && request_.taken == nullptr) {
      const MostDistinct most = most_distinct(r_, index, limiter);
      if (request_.num_items > most.num_items)
        return Status(Code::kRequestTooLarge)
            .with_int("requested", n)
            .with_double("window", static_cast<double>(most.num_items))
            .with_text("none_twice", most.bound);
    }
    if (!draw_always_moves(limiter, n))
      return Status(Code::kRequestTooLarge)
          .with_int("requested", n)
          .with_double("window", window(limiter))
          .with_text("arithmetic", limiter_text(r_, index));
    if (table_.is_read_only() && has_any()) return {};
    const int64_t live = r_.header->index_state[index].live_items.load(kRelaxed);
    if (live > 0 && live >= limiter.min_size && has_any()) {
      if (!paces_draws(limiter)) {
        count_in_flight(table_, index, n);
        RELIVE_FAIL_POINT(sample_reserved);
        return {};
      }
      Locked locked(table_.door(), deadline_);
      RELIVE_RETURN_IF_ERROR(locked.status());
      const LimiterConfig held = r_.limiter(index);
      if (can_sample(held, r_.drawn_counts(index, held), n)) {
        count_in_flight(table_, index, n);
        RELIVE_FAIL_POINT(sample_reserved);
        locked.room_came();
        return {};
      }
      note_refused_draw(&locked);
    }
    RELIVE_RETURN_IF_ERROR(wait_for_items());
  }
}

// A change of the exponent takes one hold of the lock: whoever gets the lock has outwaited it (rule H3).
Status Draw::outwait_change() {
  if (!has_exponent_ || (r_.header->num_raised.load(std::memory_order_acquire) & 1) == 0 || !RELIVE_RULE(H3_draw))
    return {};
  if (!table_.is_read_only()) return Locked(table_.door(), deadline_).status();
  Hearing hearing(deadline_, nullptr);
  while ((r_.header->num_raised.load(std::memory_order_acquire) & 1) != 0) {
    if (deadline_.passed()) return late(Code::kDeadlineExceeded);
    if (hearing.ends()) return Status(Code::kInterrupted);
    futex_wait(&r_.header->items_event.count, r_.header->items_event.count.load(), kChangeSlice_s);
  }
  return {};
}

// Of a round that a change of the exponent met, nothing counts: some masses were old ones, some new ones (rule H3).
void Draw::forget_round() {
  s_.still_missing.assign(s_.missing.begin(), s_.missing.end());
  for (uint32_t j : s_.missing) s_.windows[j].ok = false;
  s_.looks.num_unfilled = 0;
  s_.looks.is_short = false;
}

// Whether an order was read that does not have all items yet: who publishes counts them before the tree is told of them,
// and a batch would have some twice that could have others (rule R4). Who only reads might wait for the dead.
bool Draw::is_behind(const Leaves& leaves, uint64_t num_wanted) const {
  const auto num_live = static_cast<uint64_t>(std::max<int64_t>(0, leaves.num_live()));
  return s_.best.size() < std::min(num_wanted, num_live) && !table_.is_read_only();
}

// One attempt at every draw that is still missing. False where the index has nothing to draw.
bool Draw::draw_missing(const DrawRequest& request, uint32_t attempt) {
  const Leaves leaves(r_, request.index);
  const uint64_t base = FreshMasses(leaves).base();
  const uint64_t changes = has_exponent_ ? r_.header->num_raised.load(std::memory_order_acquire) : 0;
  if (s_.missing.size() == request_.num_items) first_raised_ = changes;
  last_raised_ = changes;
  const double total = leaves.total();
  if (!leaves.is_mass(total)) return false;
  const CounterRng rng(r_.geometry->seed, table_.stream(), call_, attempt);
  const uint64_t num_wanted = s_.missing.size() + s_.taken.size();
  const uint64_t empty = draw_round(r_, request, rng, total, &s_);
  if (is_by_order() && is_behind(leaves, num_wanted)) forget_round();
  // Where masses are moved to another base meanwhile, nobody knows by which of them an item was drawn (rule Z3).
  if (FreshMasses(leaves).base() != base || (base & 1) != 0) forget_round();
  if (has_exponent_ && RELIVE_RULE(H3_draw)) {
    acquire_fence();
    if ((changes & 1) != 0 || r_.header->num_raised.load(kRelaxed) != changes) forget_round();
  }
  if (!table_.is_read_only() && !s_.still_missing.empty()) {
    const uint64_t not_drawn = std::max(is_sifted() ? 0 : empty, s_.looks.num_unfilled);
    r_.header->counters.redraws_empty.fetch_add(empty, kRelaxed);
    r_.header->counters.redraws_generation.fetch_add(
        s_.still_missing.size() - std::min(s_.still_missing.size(), not_drawn), kRelaxed);
  }
  return true;
}

// Whether a draw that looks for its items goes on after a round that did not find enough.
Status Draw::look_on() {
  const Looks& looks = s_.looks;
  if (looks.num_unfilled == 0) return {};
  if (!hearing_) hearing_.emplace(deadline_, nullptr);
  if (hearing_->ends()) return Status(Code::kInterrupted);
  // Without replacement: what is there is looked for to the end once, so that timeout 0 finds it, and finds what any does.
  if (request_.where == nullptr)
    return looks.has_raced && deadline_.passed() ? late(Code::kDeadlineExceeded) : Status();
  const bool is_late = looks.tried >= kLeastLooks && deadline_.passed();
  const bool is_rare = is_late || looks.tried >= kLeastLooks + kLooksAnItem * request_.num_items;
  if (!(is_distinct() ? looks.has_raced : is_rare)) return {};
  const double share = static_cast<double>(looks.passed) / static_cast<double>(std::max<uint64_t>(1, looks.looked));
  return Status(Code::kRareItems)
      .with_text("where", request_.where->text)
      .with_int("asked", num_items())
      .with_int("found",
                std::min<int64_t>(num_items(), static_cast<int64_t>(is_distinct() ? looks.brought : looks.passed)))
      .with_int("looked_at", static_cast<int64_t>(looks.looked))
      .with_double("share", share);
}

// The rows of items whose lengths were read. Those that went in between are drawn anew, too.
Status Draw::read_rows() {
  const size_t before = s_.still_missing.size();
  RELIVE_RETURN_IF_ERROR(read_ragged(r_, request_, &s_));
  if (!table_.is_read_only() && s_.still_missing.size() > before)
    r_.header->counters.redraws_generation.fetch_add(s_.still_missing.size() - before, kRelaxed);
  return {};
}

// Use counts: each item drawn this round is taken under the lock, or goes back among the missing (rule G7).
Status Draw::claim() {
  if (!takes_claims()) return {};
  if (RELIVE_RULE(G7_claim_in_lock)) {
    Locked locked(table_.door(), deadline_);
    RELIVE_RETURN_IF_ERROR(locked.status());
    claim_held(locked.held());
    if (is_queue()) locked.room_came();  // with what left it, not with what was reserved
  } else {
    Alone pretended(table_.door());
    claim_held(pretended.held());
  }
  return {};
}

void Draw::claim_held(Held& held) {
  const uint32_t index = request_.index;
  const Leaves leaves(r_, index);
  const ItemMap& map = r_.map(index);
  Window* const windows = s_.windows.data();
  for (uint32_t j : s_.missing) {
    Window& w = windows[j];
    if (!w.ok) continue;
    if (!map.is_same(w.slot, w.word) || !leaves.is_drawable(leaves.state(w.slot))) {
      w.ok = false;
      s_.still_missing.push_back(j);
      r_.header->counters.redraws_claimed.fetch_add(1, kRelaxed);
      continue;
    }
    claim_use(held, index, w.slot, w.word, &s_.claimed);
  }
}

// A batch that cannot be completed gives back what it claimed.
void Draw::undo_claims(const Deadline& deadline) {
  relive::undo_claims(table_, request_.index, s_.claimed, deadline);
  s_.claimed.clear();
}

// Of a draw without replacement the heavy items come first: each goes to a row at random, so that any slice of the batch is
// a fair one.
void Draw::ask_for_all() {
  s_.missing.resize(request_.num_items);
  if (is_distinct()) {
    std::copy_n(s_.strata.begin(), request_.num_items, s_.missing.begin());
  } else {
    for (size_t j = 0; j < request_.num_items; ++j) s_.missing[j] = static_cast<uint32_t>(j);
  }
  s_.taken.clear();
}

// A change between two rounds leaves each of them of one exponent, but not the batch: it is drawn anew (rule H3).
Status Draw::fill_of_one_exponent(bool* empty) {
  for (uint32_t change = 0;; ++change) {
    RELIVE_RETURN_IF_ERROR(fill(empty));
    if (*empty || first_raised_ == last_raised_ || !RELIVE_RULE(H3_draw)) return {};
    if (change >= kChangesBorne && deadline_.passed()) return late(Code::kDeadlineExceeded);
    undo_claims(deadline_);
    s_.looks = {};
    s_.begin_distinct(request_.num_items);
  }
}

Status Draw::fill(bool* empty) {
  *empty = false;
  ask_for_all();
  s_.claimed.clear();
  const bool is_patient = table_.is_read_only();  // it cannot hold pages
  // Who draws an order to its end takes what comes next and nothing else: chosen where it is claimed (rule R4). Else a
  // batch of which items went is drawn anew from the best on, so that it is in order and has none twice.
  if (takes_claims() && is_by_order()) return fill_held(empty, kRoundsWithoutLock);
  // A round of a draw with a condition that found too little is none that lost something.
  for (uint32_t attempt = 0, lost = 0; !s_.missing.empty(); ++attempt, lost += s_.looks.num_unfilled == 0 ? 1 : 0) {
    if (!is_patient && lost >= RELIVE_ROUNDS(kRoundsWithoutLock))
      return fill_held(empty, std::max(attempt, kRoundsWithoutLock));
    if (is_patient && lost >= kRoundsWithoutLock && deadline_.passed()) return late(Code::kDeadlineExceeded);
    if (request_.ragged != nullptr) forget(s_.missing);
    RELIVE_RETURN_IF_ERROR(outwait_change());
    if (!draw_missing(first_, attempt) || s_.looks.is_short) {
      *empty = true;
      return {};
    }
    if (request_.ragged != nullptr) RELIVE_RETURN_IF_ERROR(read_rows());
    RELIVE_RETURN_IF_ERROR(claim());
    s_.missing.swap(s_.still_missing);
    if (is_by_order() && !s_.missing.empty()) ask_for_all();
    if (s_.looks.num_unfilled != 0) RELIVE_RETURN_IF_ERROR(look_on());
  }
  return {};
}

// Of the rows that were drawn without the lock, those whose items went meanwhile are missing again. True where none did.
bool Draw::drop_gone() {
  const ItemMap& map = r_.map(request_.index);
  for (uint32_t j : s_.missing) {
    Window& w = s_.windows[j];
    if (!w.ok || map.is_same(w.slot, w.word)) continue;
    w.ok = false;
    s_.still_missing.push_back(j);
  }
  return s_.still_missing.empty();
}

// Of a draw that looks for its items: chosen[begin .. end) found without the lock, for rows are read, while pages are held; under
// it they are claimed and noted (rule G10).
Status Draw::find_held(const DrawRequest& choice, bool is_noted, size_t begin, size_t end, uint32_t* attempt,
                       bool* empty) {
  for (uint32_t lost = 0; !s_.missing.empty();) {
    RELIVE_RETURN_IF_ERROR(outwait_change());
    if (lost > kRoundsWithLock || !draw_missing(choice, (*attempt)++) || s_.looks.is_short) {
      *empty = true;
      return {};
    }
    RELIVE_RETURN_IF_ERROR(look_on());
    if (s_.looks.num_unfilled == 0) ++lost;
    s_.claimed.reserve(s_.claimed.size() + s_.missing.size());  // not under the lock
    RELIVE_RETURN_IF_ERROR(claim());
    s_.missing.swap(s_.still_missing);
    if (!s_.missing.empty() && is_by_order() && !takes_claims()) ask_for_all();  // what comes later comes behind
    if (!s_.missing.empty() || !is_noted) continue;
    s_.missing.assign(s_.chosen.begin() + static_cast<std::ptrdiff_t>(begin),
                      s_.chosen.begin() + static_cast<std::ptrdiff_t>(end));
    s_.still_missing.clear();
    Locked locked(table_.door(), deadline_);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (drop_gone()) note_chosen(r_, request_, &s_, begin, end);
    s_.missing.swap(s_.still_missing);
  }
  return {};
}

// What the rounds without the lock did not bring: chosen (and claimed) under it, a few at a time, and read without it
// while this participant holds every page where it is, so that nothing that was chosen can go (rules G5, D7).
Status Draw::fill_held(bool* empty, uint32_t attempt) {
  r_.header->counters.slow_draws.fetch_add(1, kRelaxed);
  DrawRequest choice = request_;
  choice.plan = nullptr;
  Hold hold(table_.door(), deadline_);
  s_.chosen.assign(s_.missing.begin(), s_.missing.end());
  const bool is_noted = request_.plan != nullptr && is_noted_when_chosen(*request_.plan);
  s_.runs.clear();
  if (is_noted) s_.runs.reserve(s_.chosen.size() * r_.geometry->records[request_.index].nodes_a_record());
  // A batch that is in order is of one moment, and so chosen in one hold (rule R4).
  const size_t most = is_noted ? std::min(kChunk, noted_a_hold(r_, request_.index)) : kChunk;
  const size_t chunk = is_by_order() ? s_.chosen.size() : most;
  for (size_t begin = 0; begin < s_.chosen.size(); begin += chunk) {
    const size_t end = std::min(s_.chosen.size(), begin + chunk);
    s_.missing.clear();
    for (size_t k = begin; k < end; ++k) s_.missing.push_back(s_.chosen[k]);
    Locked locked(table_.door(), deadline_);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (request_.plan != nullptr) hold.begin(locked);
    if (is_sifted() || is_shuffled()) {
      locked.release();
      RELIVE_RETURN_IF_ERROR(find_held(choice, is_noted, begin, end, &attempt, empty));
      if (*empty) return {};
      continue;
    }
    for (uint32_t round = 0; !s_.missing.empty(); ++round) {
      if (round > kRoundsWithLock || !draw_missing(choice, attempt++)) {
        *empty = true;
        return {};
      }
      if (takes_claims()) claim_held(locked.held());
      if (is_queue()) locked.room_came();
      Leaves::flush_all(locked.held());  // the next round descends by these sums
      s_.missing.swap(s_.still_missing);
    }
    if (is_noted) note_chosen(r_, request_, &s_, begin, end);
  }
  return request_.plan != nullptr ? read_held(empty) : Status();
}

// What was chosen, while every page is held.
Status Draw::read_held(bool* empty) {
  if (request_.ragged == nullptr) {
    *empty = !read_chosen(r_, request_, &s_);
    return {};
  }
  RaggedBatch& ragged = *request_.ragged;
  forget(s_.chosen);
  *empty = !read_chosen(r_, first_, &s_);
  if (*empty) return {};
  RELIVE_RETURN_IF_ERROR(ragged.lay_out());
  ragged.place(s_.windows.data(), s_.chosen.data(), s_.chosen.size());
  DrawRequest rows = request_;
  rows.out = ragged.out();
  *empty = !read_chosen(r_, rows, &s_);
  for (uint32_t j : s_.chosen) ragged.note(j);
  return {};
}

// Turns behind which nobody took one are as though they had not been taken; others are lost, as those of the dead.
void Draw::give_back_turns() {
  if (!is_shuffled() || !s_.is_one_run || s_.first_turn == s_.end_turn || !table_.is_of_this_process()) return;
  uint64_t end = s_.end_turn;
  r_.turns[request_.index]->compare_exchange_strong(end, s_.first_turn, kRelaxed);
}

// Items that the caller chose, some at a time: each that is there and not used up is claimed as one of a draw is.
Status Draw::claim_own(int64_t* num_taken) {
  const uint32_t index = request_.index;
  const Leaves leaves(r_, index);
  const ItemMap& map = r_.map(index);
  for (size_t begin = 0; begin < request_.num_items; begin += kChunk) {
    Locked locked(table_.door(), deadline_);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t i = begin; i < std::min(request_.num_items, begin + kChunk); ++i) {
      const uint64_t slot = r_.leaf_of_key(index, request_.keys[i]);
      const uint64_t word = map.word(slot);
      const bool is_there = Region::is_used(word) && r_.key_generation(request_.keys[i]) == Region::generation_of(word);
      request_.taken[i] = is_there && leaves.is_drawable(leaves.state(slot)) ? 1 : 0;
      if (!request_.taken[i]) continue;
      *num_taken += 1;
      if (r_.max_times(index) != 0) claim_use(locked.held(), index, slot, word, &s_.claimed);
    }
    if (is_queue()) locked.room_came();
  }
  return {};
}

// A draw that somebody else chose, claimed and counted as ours are: what is gone, or used up, is not of it.
Status Draw::run_own() {
  RELIVE_RETURN_IF_ERROR(reserve());
  s_.claimed.clear();
  s_.claimed.reserve(request_.num_items);
  *request_.num_live_items = std::max<int64_t>(1, r_.header->index_state[request_.index].live_items.load(kRelaxed));
  int64_t num_taken = 0;
  Status status = claim_own(&num_taken);
  if (!status.ok()) {
    undo_claims(status.code() == Code::kInterrupted ? Deadline::after(0.0) : deadline_);
    num_taken = 0;
  } else {
    decide_claims(table_, request_.index, s_.claimed, false);
  }
  if (num_taken < num_items()) return_credit(table_, request_.index, num_items() - num_taken);
  if (num_taken > 0) commit_credit(table_, request_.index, num_taken);
  return status;
}

// Nothing of a batch that cannot be completed stays: neither claims nor credit, nor the number of the draw.
Status Draw::give_up(Status status) {
  undo_claims(status.code() == Code::kInterrupted ? Deadline::after(0.0) : deadline_);
  give_back_turns();
  return_credit(table_, request_.index, num_items());
  (void)table_.give_back_draw(call_);
  return status;
}

// There is something, but not enough unused items for the whole batch: sleeps until more come.
Status Draw::wait_for_unused() {
  if (deadline_.passed()) return late(Code::kDeadlineExceeded);
  const Code code = before_waiting(table_, true);
  if (code != Code::kOk) return code == Code::kInterrupted ? Status(code) : late(code);
  EventWords& event = r_.header->items_event;
  const uint32_t seen = event.count.load();
  std::optional<Sleeping> sleeping;  // who is read-only writes nothing
  if (!table_.is_read_only()) {
    sleeping.emplace(table_, this->wait(), deadline_.waited_s());
    event.waiters.store(1);
  }
  futex_wait(&event.count, seen, std::min(deadline_.remaining_s(), kWaitSlice_s));
  return is_interrupted() ? Status(Code::kInterrupted) : Status();
}

Status Draw::run() {
  const ItemShape& shape = r_.shape(request_.index);
  const size_t pages_a_window = r_.map(request_.index).is_explicit
                                    ? r_.geometry->records[request_.index].nodes_a_record()
                                    : (shape.before + shape.after()) / r_.page_len + 2;
  while (true) {
    RELIVE_RETURN_IF_ERROR(reserve());
    // A wait takes no number: the same calls draw the same items, however long each had to wait.
    call_ = table_.take_draw();
    s_.begin(CounterRng(r_.geometry->seed, table_.stream(), call_, 0), request_.num_items, pages_a_window);
    if (const Leaves leaves(r_, request_.index); leaves.is_ranked())
      s_.begin_ranked(leaves.config(), request_.num_items);
    if (is_distinct()) s_.begin_distinct(request_.num_items);
    if (request_.ragged != nullptr) {
      request_.ragged->begin(request_.num_items);
      first_.out = request_.ragged->lengths_out();
    }
    bool empty = false;
    if (request_.num_live_items != nullptr)  // as it is at the draw, before use counts take from it
      *request_.num_live_items = std::max<int64_t>(1, r_.header->index_state[request_.index].live_items.load(kRelaxed));
    Status status = fill_of_one_exponent(&empty);
    if (status.ok() && !empty) break;
    RELIVE_RETURN_IF_ERROR(give_up(std::move(status)));
    RELIVE_RETURN_IF_ERROR(wait_for_unused());
  }
  if (request_.claims != nullptr) {
    request_.claims->insert(request_.claims->end(), s_.claimed.begin(), s_.claimed.end());
  } else if (!request_.is_planned) {
    decide_claims(table_, request_.index, s_.claimed, request_.plan != nullptr);
  }
  if (!request_.hold) commit_credit(table_, request_.index, num_items());
  return {};
}

}  // namespace

Status draw_batch(Table& table, const DrawRequest& request, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  if (request.num_items == 0) return {};
  const bool is_shuffled = (table.region().header->indexes[request.index].traits & kIsShuffled) != 0;
  if (table.is_read_only() && (is_shuffled || request.taken != nullptr)) return Status(Code::kReadOnly);
  table.note_sampling();
  if (is_in_interrupt()) {  // a signal's handler draws in the middle of a draw of its own thread
    DrawScratch own;
    Draw draw(table, request, deadline, own);
    return request.taken != nullptr ? draw.run_own() : draw.run();
  }
  thread_local DrawScratch scratch;
  Draw draw(table, request, deadline, scratch);
  return request.taken != nullptr ? draw.run_own() : draw.run();
}

}  // namespace relive
