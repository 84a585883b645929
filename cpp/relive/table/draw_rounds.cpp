#include "relive/table/draw_rounds.hpp"

#include <algorithm>

#include "relive/index/fresh_masses.hpp"
#include "relive/read/where.hpp"
#include "relive/table/claims.hpp"
#include "relive/table/draw_waits.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr double kChangeSlice_s = 0.001;

}  // namespace

DrawRounds::DrawRounds(const DrawCall& call, DrawScratch& scratch)
    : call_(call), s_(scratch), missing_(scratch), first_(call.request), has_exponent_(has_exponent(call.config())) {
  if (call.request.ragged == nullptr) return;
  first_.plan = &call.request.ragged->lengths_plan();
  first_.ragged = nullptr;
}

void DrawRounds::begin(uint64_t draw_number) {
  const Region& r = call_.r;
  const DrawRequest& request = call_.request;
  draw_number_ = draw_number;
  const ItemShape& shape = r.shape(request.index);
  const size_t pages_a_window = r.map(request.index).is_explicit ? r.geometry->records[request.index].nodes_a_record()
                                                                 : (shape.before + shape.after()) / r.page_len + 2;
  s_.begin(CounterRng(r.geometry->seed, call_.table.stream(), draw_number, 0), request.num_items, pages_a_window);
  if (const Leaves leaves(r, request.index); leaves.is_ranked()) s_.begin_ranked(leaves.config(), request.num_items);
  if (call_.is_distinct()) s_.begin_distinct(request.num_items);
  if (request.ragged == nullptr) return;
  request.ragged->begin(request.num_items);
  first_.out = request.ragged->lengths_out();
}

void DrawRounds::begin_again() {
  s_.looks = {};
  s_.begin_distinct(call_.request.num_items);
}

// A change of the exponent is one critical section, so a thread that gets the lock has outwaited it.
Status DrawRounds::outwait_change() {
  const Header& header = *call_.r.header;
  if (!has_exponent_ || (header.num_raised.load(std::memory_order_acquire) & 1) == 0 || !RELIVE_RULE(H3_draw))
    return {};
  if (!call_.table.is_read_only()) return Locked(call_.table.door(), call_.deadline).status();
  Hearing hearing(call_.deadline, nullptr);
  while ((header.num_raised.load(std::memory_order_acquire) & 1) != 0) {
    if (call_.deadline.passed()) return draw_error(call_, Code::kDeadlineExceeded);
    if (hearing.ends()) return Status(Code::kInterrupted);
    std::atomic<uint32_t>& count = call_.r.header->items_event.count;
    futex_wait(&count, count.load(), kChangeSlice_s);
  }
  return {};
}

// A round that a change of masses met counts for nothing: some masses were old ones and some new ones (rules H3, Z3).
void DrawRounds::forget_round() {
  missing_.lose_all();
  s_.looks.num_unfilled = 0;
  s_.looks.is_short = false;
}

// Whether the order that the round read lacks items: a publication counts its items before it tells the tree of them.
// Such a batch would have some items twice, although it could have others (rule R4). A read-only handle takes it as it
// is: the publisher may be dead, and the handle would wait for ever.
bool DrawRounds::is_behind(const Leaves& leaves, uint64_t num_wanted) const {
  const auto num_live = static_cast<uint64_t>(std::max<int64_t>(0, leaves.num_live()));
  return s_.best.size() < std::min(num_wanted, num_live) && !call_.table.is_read_only();
}

bool DrawRounds::draw(const DrawRequest& request, uint32_t attempt) {
  Region& r = call_.r;
  const Leaves leaves(r, request.index);
  const uint64_t base = FreshMasses(leaves).base();
  const uint64_t changes = has_exponent_ ? r.header->num_raised.load(std::memory_order_acquire) : 0;
  if (missing_.size() == call_.request.num_items) first_raised_ = changes;
  last_raised_ = changes;
  const double total = leaves.total();
  if (!leaves.is_mass(total)) return false;
  const CounterRng rng(r.geometry->seed, call_.table.stream(), draw_number_, attempt);
  const uint64_t num_wanted = missing_.size() + s_.taken.size();
  const uint64_t empty = draw_round(r, request, rng, total, &s_);
  if (call_.is_by_order() && is_behind(leaves, num_wanted)) forget_round();
  // If masses moved to another base meanwhile, it is not known by which of them an item was drawn (rule Z3).
  if (FreshMasses(leaves).base() != base || (base & 1) != 0) forget_round();
  if (has_exponent_ && RELIVE_RULE(H3_draw)) {
    acquire_fence();
    if ((changes & 1) != 0 || r.header->num_raised.load(kRelaxed) != changes) forget_round();
  }
  if (!call_.table.is_read_only() && missing_.num_lost() > 0) {
    const uint64_t not_drawn = std::max(call_.is_sifted() ? 0 : empty, s_.looks.num_unfilled);
    r.header->counters.redraws_empty.fetch_add(empty, kRelaxed);
    r.header->counters.redraws_generation.fetch_add(missing_.num_lost() - std::min(missing_.num_lost(), not_drawn),
                                                    kRelaxed);
  }
  return !s_.looks.is_short;
}

Status DrawRounds::look_on() {
  const Looks& looks = s_.looks;
  const DrawRequest& request = call_.request;
  if (looks.num_unfilled == 0) return {};
  if (!hearing_) hearing_.emplace(call_.deadline, nullptr);
  if (hearing_->ends()) return Status(Code::kInterrupted);
  // Without replacement, the draw looks among all items once, so that timeout 0 finds the items that any timeout finds.
  if (request.where == nullptr)
    return looks.has_raced && call_.deadline.passed() ? draw_error(call_, Code::kDeadlineExceeded) : Status();
  const bool is_late = looks.tried >= kLeastLooks && call_.deadline.passed();
  const bool is_rare = is_late || looks.tried >= kLeastLooks + kLooksAnItem * request.num_items;
  const bool is_distinct = call_.is_distinct();
  if (!(is_distinct ? looks.has_raced : is_rare)) return {};
  const double share = static_cast<double>(looks.passed) / static_cast<double>(std::max<uint64_t>(1, looks.looked));
  return Status(Code::kRareItems)
      .with_text("where", request.where->text)
      .with_int("asked", call_.num_items())
      .with_int("found",
                std::min<int64_t>(call_.num_items(), static_cast<int64_t>(is_distinct ? looks.brought : looks.passed)))
      .with_int("looked_at", static_cast<int64_t>(looks.looked))
      .with_double("share", share);
}

Status DrawRounds::read_rows() {
  if (call_.request.ragged == nullptr) return {};
  const size_t before = missing_.num_lost();
  RELIVE_RETURN_IF_ERROR(read_ragged(call_.r, call_.request, &s_));
  if (!call_.table.is_read_only() && missing_.num_lost() > before)
    call_.r.header->counters.redraws_generation.fetch_add(missing_.num_lost() - before, kRelaxed);
  return {};
}

Status DrawRounds::claim() {
  if (!call_.takes_claims()) return {};
  if (RELIVE_RULE(G7_claim_in_lock)) {
    Locked locked(call_.table.door(), call_.deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    claim_locked(locked.held());
  } else {
    Alone pretended(call_.table.door());
    claim_locked(pretended.held());
  }
  return {};
}

void DrawRounds::claim_locked(Held& held) {
  const uint32_t index = call_.request.index;
  const Leaves leaves(call_.r, index);
  const ItemMap& map = call_.r.map(index);
  missing_.keep_if([&](const Window& w) {
    if (!map.is_same(w.slot, w.word) || !leaves.is_drawable(leaves.state(w.slot))) {
      call_.r.header->counters.redraws_claimed.fetch_add(1, kRelaxed);
      return false;
    }
    claim_use(call_.table, held, index, w.slot, w.word, &s_.claimed);
    return true;
  });
}

void DrawRounds::undo_claims(const Deadline& deadline) {
  relive::undo_claims(call_.table, call_.request.index, s_.claimed, deadline);
  s_.claimed.clear();
}

}  // namespace relive
