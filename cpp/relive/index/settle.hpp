// What recovery makes of leaves: values that stand for no item go, and what is there is counted.
//
// Locking: under the table lock. Idempotent: whoever dies in here, the next one starts again.
// Cost:    1 to 3 ns a leaf where neighbours are in one state, as nearly all are: what follows from a state is worked out
//          once for a run of them.
#pragma once

#include <algorithm>

#include "relive/index/leaves.hpp"

namespace relive {

// Items of a bounded index: what draws them is of the priority of what removes them, where both look at it (rule R3).
inline void Leaves::settle_priorities(Held& held, uint64_t begin, uint64_t end) const {
  if (!has_priorities() || !draws_as_it_removes(config())) return;
  constexpr uint64_t kSome = 256;
  double removal[kSome], sampling[kSome];
  for (; begin < end; begin += std::min(kSome, end - begin)) {
    const uint64_t count = std::min(kSome, end - begin);
    for (uint64_t i = 0; i < count; ++i) removal[i] = orders().leaf(begin + i);
    sampling_leaves_of(config(), removal, count, sampling);
    for (uint64_t i = 0; i < count; ++i)
      if (tree().leaf(begin + i) != sampling[i]) held.region.trees_[index_].set_leaf(begin + i, sampling[i]);
  }
}

template <class Has>
void Leaves::settle(Held& held, uint64_t slot, uint16_t state, bool is_there, Has has) const {
  const bool is_item = is_there && is_drawable(state);
  if (has(kIsBounded) && is_item && RELIVE_RULE(R3_settle)) settle_priorities(held, slot, slot + 1);
  if (has(kHasTurns) && RELIVE_RULE(R5_settle)) settle_turn(held, slot, is_there);
  const double value = tree().leaf(slot);
  if (has(kIsBounded) && !is_item) held.region.orders_[index_].set_leaf(slot, orders().identity());
  for (const Due due : kDues) {
    if (!has(trait_of(due))) continue;
    if (may_be_due(due, state, is_there)) {  // a note of what is still an item counts for nothing
      if (due == Due::kAge && is_noted(due, slot) && RELIVE_RULE(Z1_version))
        held.region.dues_[static_cast<uint32_t>(due)][index_].set_leaf(slot, oldest_version(held.region, index_, slot));
      continue;
    }
    if (RELIVE_RULE(T3_count)) count_drop(due, slot);
    held.region.dues_[static_cast<uint32_t>(due)][index_].set_leaf(slot, dues(due).identity());
  }
  if (is_item && has(kIsLatest | kFades) && RELIVE_RULE(Z4_settle)) {
    const double mass = has(kIsLatest) ? latest_mass(slot) : fresh_mass(slot);
    if (mass != value) held.region.trees_[index_].set_leaf(slot, mass);  // of nearly all of them it is
    return;
  }
  if (value == nothing() || (is_item && std::isfinite(value) && value >= 0.0)) return;
  held.region.trees_[index_].set_leaf(slot, nothing());  // inner nodes are rebuilt behind this
}

// Which leaves of one state have nothing to settle (but their priorities, settle_priorities()), for a run of them: what
// does not change from leaf to leaf is looked up once, into fields that no store can be thought to change. It changes
// nothing: what it takes for settled, settle() would leave as it is.
template <class Has>
class SettledLeaves final {
 public:
  SettledLeaves(const Leaves& leaves, uint16_t state, bool is_there, Has has)
      : leaves_(leaves),
        has_(has),
        is_item_(is_there && leaves.is_drawable(state)),
        nothing_(leaves.nothing()),
        most_(is_item_ ? std::numeric_limits<double>::max() : -1.0),
        values_(leaves.tree().held_leaves()),
        orders_(leaves.orders().held_leaves()),
        no_order_(leaves.orders().identity()),
        dues_{leaves.dues(Due::kWait).held_leaves(), leaves.dues(Due::kAge).held_leaves(),
              leaves.dues(Due::kPlace).held_leaves()},
        marks_(leaves.is_of_one_row() ? leaves.r_.marks : nullptr),
        has_turns_(has(kHasTurns)) {
    for (const Due due : Leaves::kDues)
      may_be_due_[static_cast<uint32_t>(due)] = leaves.may_be_due(due, state, is_there);
  }

  bool operator()(uint64_t slot) {
    const double value = values_[slot];
    bool is_settled = (value == nothing_) | ((value >= 0.0) & (value <= most_));
    if (has_(kFades)) is_settled = value == (is_item_ ? faded(slot) : nothing_);
    if (has_(kIsLatest)) is_settled = value == (is_item_ && is_due(Due::kPlace, slot) ? 1.0 : nothing_);
    for (const Due due : Leaves::kDues)
      if (has_(Leaves::trait_of(due))) is_settled &= is_noted_well(due, slot);
    if (has_(kIsBounded)) is_settled &= is_item_ | (orders_[slot] == no_order_);
    return is_settled & !has_turns_;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();  // of trees of minima

  double due(Due which, uint64_t slot) const { return dues_[static_cast<uint32_t>(which)][slot]; }
  bool is_due(Due which, uint64_t slot) const { return due(which, slot) != kNever; }
  // What may be due is noted by its version, not by the number of a drop that was begun; what may not be is not noted.
  bool is_noted_well(Due which, uint64_t slot) const {
    if (!may_be_due_[static_cast<uint32_t>(which)]) return !is_due(which, slot);
    return which != Due::kAge || due(which, slot) >= 0.0;
  }
  double faded(uint64_t slot) {  // neighbours are of one version, mostly
    const uint32_t version = marks_ != nullptr ? marks_[slot].policy_version.load(std::memory_order_relaxed)
                                               : oldest_version(leaves_.r_, leaves_.index_, slot);
    if (version != version_ || !has_version_) faded_ = leaves_.faded_mass(version);
    version_ = version;
    has_version_ = true;
    return faded_;
  }

  const Leaves& leaves_;
  const Has has_;
  const bool is_item_;
  const double nothing_, most_;
  const Tree::HeldLeaves values_, orders_;
  const double no_order_;
  const Tree::HeldLeaves dues_[kNumDues];
  const Mark* const marks_;  // where an item's version is its own row's
  const bool has_turns_;
  bool may_be_due_[kNumDues] = {};
  uint32_t version_ = 0;
  bool has_version_ = false;
  double faded_ = 0.0;
};

template <class Has>
void Leaves::settle_run(Held& held, uint64_t first, uint64_t count, bool is_there, Has has, SettledRows* rows) const {
  const uint64_t end = first + count;
  for (uint64_t slot = first; slot < end;) {
    const uint64_t begin = slot;
    const uint16_t state = states()[begin].load(std::memory_order_relaxed);
    uint64_t stop = begin + 1;
    while (stop < end && states()[stop].load(std::memory_order_relaxed) == state) ++stop;
    if (has(kIsBounded) && is_there && is_drawable(state) && RELIVE_RULE(R3_settle))
      settle_priorities(held, begin, stop);
    SettledLeaves<Has> is_settled(*this, state, is_there, has);
    for (; slot < stop; ++slot)
      if (!is_settled(slot)) settle(held, slot, state, is_there, has);
    const uint64_t length = stop - begin;
    count_leaves(state, is_there, static_cast<int64_t>(length), &rows->counts);
    rows->with_life += is_there && has_life(state) ? length : 0;
    rows->removed += is_there && state == kStateRemoved ? length : 0;
  }
}

}  // namespace relive
