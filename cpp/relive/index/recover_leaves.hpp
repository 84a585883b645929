// Recovery of leaves: values that stand for no item go, and the leaves that remain are counted.
//
// Owner:   a view of one index (index_view.hpp).
// Locking: under the table lock. Idempotent: if a process dies in here, the next one starts again.
// Cost:    1 to 3 ns a leaf if neighbours have one state, as nearly all have: a run of such leaves is examined once.
//          Inner nodes are not recomputed here: call rebuild() afterwards.
#pragma once

#include <algorithm>
#include <cmath>

#include "relive/index/bounds.hpp"
#include "relive/index/due_times.hpp"
#include "relive/index/fresh_masses.hpp"
#include "relive/index/record_queue.hpp"
#include "relive/index/versions.hpp"

namespace relive {

// Counts of the leaves of rows, and how many of these leaves have life, or were deleted.
struct SettledRows {
  ItemCounts counts;
  uint64_t with_life = 0, removed = 0;
};

// `has(traits)` in the functions below says which of kKept the index keeps of its items. If a caller knows that when it
// is compiled, nothing is asked of a leaf about traits that the index does not have. Recovery looks at every leaf.
class LeafRecovery final : public IndexView {
 public:
  using IndexView::IndexView;

  static constexpr uint32_t kKept = kIsBounded | kHasQueue | kIsTimed | kIsAged | kIsLatest | kFades;
  uint32_t kept() const { return r_.traits[index_] & kKept; }
  bool keeps_just(uint32_t traits) const { return kept() == traits; }

  // Settles one leaf. state: the leaf's. is_there: its step is there, or its record in use.
  template <class Has>
  void settle(Held& held, uint64_t slot, uint16_t state, bool is_there, Has has) const;
  // The same for neighbours, of which all are steps or none is; counts them.
  template <class Has>
  void settle_run(Held& held, uint64_t first, uint64_t count, bool is_there, Has has, SettledRows* rows) const;
  static void store_counts(Held& held, uint32_t index, const ItemCounts& counted);

 private:
  template <class Has>
  friend class SettledLeaves;
  bool is_of_one_row() const { return !map().is_explicit && !config().own_rows().is_set(); }
};

inline void LeafRecovery::store_counts(Held& held, uint32_t index, const ItemCounts& counted) {
  IndexState& counts = held.region.header->index_state[index];
  counts.live_items.store(counted.live_items, std::memory_order_relaxed);
  counts.pending.store(counted.pending, std::memory_order_relaxed);
  counts.unused.store(counted.unused, std::memory_order_relaxed);
  counts.massless.store(counted.massless, std::memory_order_relaxed);
}

template <class Has>
void LeafRecovery::settle(Held& held, uint64_t slot, uint16_t state, bool is_there, Has has) const {
  const bool is_item = is_there && is_drawable(state);
  if (has(kIsBounded) && is_item && RELIVE_RULE(R3_settle)) Bounds(*this).settle_priorities(held, slot, slot + 1);
  if (has(kHasQueue) && RELIVE_RULE(R5_settle)) RecordQueue(*this).settle(held, slot, is_there);
  const double value = tree().leaf(slot);
  if (has(kIsBounded) && !is_item) orders(held).set_leaf(slot, orders().identity());
  const DueTimes times(*this);
  for (const Due due : kDues) {
    if (!has(trait_of(due))) continue;
    if (times.may_be_due(due, state, is_there)) {  // the note of a drop counts for nothing while the item is there
      if (due == Due::kAge && times.is_dropping(due, slot) && RELIVE_RULE(Z1_version))
        dues(held, due).set_leaf(slot, oldest_version(held.region, index_, slot));
      continue;
    }
    if (RELIVE_RULE(T3_count)) times.count_drop(due, slot);
    dues(held, due).set_leaf(slot, dues(due).identity());
  }
  if (is_item && has(kIsLatest | kFades) && RELIVE_RULE(Z4_settle)) {
    const double mass = FreshMasses(*this).of(slot);
    if (mass != value) tree(held).set_leaf(slot, mass);  // nearly all have it already
    return;
  }
  if (value == nothing() || (is_item && std::isfinite(value) && value >= 0.0)) return;
  tree(held).set_leaf(slot, nothing());
}

// Finds the leaves of one state that settle() would not change (except for priorities: settle_priorities()). Values
// that do not differ from leaf to leaf are looked up once, into fields that a compiler knows to be constant. It changes
// nothing.
template <class Has>
class SettledLeaves final {
 public:
  SettledLeaves(const LeafRecovery& leaves, uint16_t state, bool is_there, Has has)
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
        has_queue_(has(kHasQueue)) {
    for (const Due due : LeafRecovery::kDues)
      may_be_due_[static_cast<uint32_t>(due)] = DueTimes(leaves).may_be_due(due, state, is_there);
  }

  bool operator()(uint64_t slot) {
    const double value = values_[slot];
    bool is_settled = (value == nothing_) | ((value >= 0.0) & (value <= most_));
    if (has_(kFades)) is_settled = value == (is_item_ ? faded(slot) : nothing_);
    if (has_(kIsLatest)) is_settled = value == (is_item_ && is_due(Due::kPlace, slot) ? 1.0 : nothing_);
    for (const Due due : LeafRecovery::kDues)
      if (has_(LeafRecovery::trait_of(due))) is_settled &= is_noted_well(due, slot);
    if (has_(kIsBounded)) is_settled &= is_item_ | (orders_[slot] == no_order_);
    return is_settled & !has_queue_;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();  // the identity of minima

  double due(Due which, uint64_t slot) const { return dues_[static_cast<uint32_t>(which)][slot]; }
  bool is_due(Due which, uint64_t slot) const { return due(which, slot) != kNever; }
  // A leaf that may be due has its version, not the number of a drop that was begun. One that may not has nothing.
  bool is_noted_well(Due which, uint64_t slot) const {
    if (!may_be_due_[static_cast<uint32_t>(which)]) return !is_due(which, slot);
    return which != Due::kAge || due(which, slot) >= 0.0;
  }
  double faded(uint64_t slot) {  // neighbours mostly have one version
    const uint32_t version = marks_ != nullptr ? marks_[slot].policy_version.load(std::memory_order_relaxed)
                                               : oldest_version(leaves_.r_, leaves_.index_, slot);
    if (version != version_ || !has_version_) faded_ = FreshMasses(leaves_).of_version(version);
    version_ = version;
    has_version_ = true;
    return faded_;
  }

  const LeafRecovery& leaves_;
  const Has has_;
  const bool is_item_;
  const double nothing_, most_;
  const Tree::HeldLeaves values_, orders_;
  const double no_order_;
  const Tree::HeldLeaves dues_[kNumDues];
  const Mark* const marks_;  // where an item's version is its own row's
  const bool has_queue_;
  bool may_be_due_[kNumDues] = {};
  uint32_t version_ = 0;
  bool has_version_ = false;
  double faded_ = 0.0;
};

template <class Has>
void LeafRecovery::settle_run(Held& held, uint64_t first, uint64_t count, bool is_there, Has has,
                              SettledRows* rows) const {
  const uint64_t end = first + count;
  for (uint64_t slot = first; slot < end;) {
    const uint64_t begin = slot;
    const uint16_t state = states()[begin].load(std::memory_order_relaxed);
    uint64_t stop = begin + 1;
    while (stop < end && states()[stop].load(std::memory_order_relaxed) == state) ++stop;
    if (has(kIsBounded) && is_there && is_drawable(state) && RELIVE_RULE(R3_settle))
      Bounds(*this).settle_priorities(held, begin, stop);
    SettledLeaves<Has> is_settled(*this, state, is_there, has);
    for (; slot < stop; ++slot)
      if (!is_settled(slot)) settle(held, slot, state, is_there, has);
    if (is_there && is_drawable(state) && may_be_massless())
      for (slot = begin; slot < stop; ++slot) count_massless(slot, state, true, &rows->counts);
    const uint64_t length = stop - begin;
    count_leaves(state, is_there, static_cast<int64_t>(length), &rows->counts);
    rows->with_life += is_there && has_life(state) ? length : 0;
    rows->removed += is_there && state == kStateRemoved ? length : 0;
  }
}

}  // namespace relive
