// A view of one index of a region: its configuration, its leaves and its trees. Every class of this room is such a
// view, and this room is the only one that names a tree or the word of a leaf state.
//
// Owner:   the region owns all words. A view refers to them: it is made where it is used and is cheap to copy.
// Locking: a function that takes a Held runs under the table lock; every other one may be called at any time. A reader
//          without the lock reads the page's word before a value or a state, and again after it (rules G2, G4).
// Cost:    O(1) for each function but flush and rebuild.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "relive/index/kinds.hpp"
#include "relive/words/held.hpp"
#include "relive/words/region.hpp"
#include "relive/words/testing.hpp"

namespace relive {

// Counts that follow from the leaves of an index.
struct ItemCounts {
  int64_t live_items = 0, pending = 0, unused = 0, massless = 0;
};

class IndexView {
 public:
  IndexView(const Region& r, uint32_t index)
      : r_(r), tree_(r.trees_[index]), states_(r.states_[index]), index_(index) {}

  static constexpr uint64_t kNoLeaf = Tree::kNone;

  // ---- the traits of the index
  const IndexConfig& config() const { return r_.header->indexes[index_]; }
  const Kind& kind() const { return kind_of(config().sampling); }
  const ItemMap& map() const { return r_.map(index_); }
  // Whether the index has one of these traits (words/layout.hpp).
  bool keeps(uint32_t traits) const { return (r_.traits[index_] & traits) != 0; }
  // Whether update_priorities may be called: the sampler or the remover looks at priorities.
  bool has_priorities() const { return keeps(kHasPriorities); }
  // Whether the index has a remover's tree: max_items, or records that a remover chooses from.
  bool is_bounded() const { return keeps(kIsBounded); }
  // Whether its records wait in a queue for a remover that chooses among them (rule R5).
  bool has_queue() const { return keeps(kHasQueue); }
  bool is_timed() const { return keeps(kIsTimed); }    // max_wait_s
  bool is_aged() const { return keeps(kIsAged); }      // max_staleness
  bool is_latest() const { return keeps(kIsLatest); }  // Fresh(last=)
  // Whether items are drawn by the ranks of their priorities; then, the classes that give the ranks.
  bool is_ranked() const { return keeps(kIsRanked); }
  const Ranks& ranks() const { return r_.ranks_[index_]; }
  bool counts_uses() const { return r_.max_times(index_) != 0; }
  // Whether an item has more than its mass: a leaf in a remover's tree, a place in an order, a version.
  bool keeps_order() const { return keeps(kIsBounded | kIsOrdered | kIsAged | kIsLatest | kFades); }

  // ---- the value of a leaf
  double mass(uint64_t slot) const { return tree().leaf(slot); }  // acquire
  double total() const { return tree().total(); }                 // the reduction of all leaves
  double nothing() const { return tree().identity(); }            // the value of a leaf that cannot be drawn
  bool has_mass(uint64_t slot) const { return is_mass(mass(slot)); }
  bool has_any() const { return is_mass(total()); }
  // For every reduction nothing() is no mass: it is 0 or an infinity.
  static bool is_mass(double value) { return value > 0.0 && value <= std::numeric_limits<double>::max(); }
  void prefetch(uint64_t slot) const { tree().prefetch(slot); }

  // ---- the state of a leaf
  uint16_t state(uint64_t slot) const { return states()[slot].load(std::memory_order_acquire); }
  // Whether a key still leads to the item's rows: the item was published, and has neither been deleted nor ended.
  bool is_published(uint64_t slot) const { return state(slot) <= kMostUses; }
  // Whether an item of this state can be drawn. No branch, as in has_life().
  bool is_drawable(uint16_t state) const {
    const uint32_t most = r_.max_times(index_);
    return (state <= kMostUses) & ((most == 0) | (state < most));
  }
  // Whether a leaf of this state is an item, or may become one. No branch: of many rows a processor cannot guess it.
  bool has_life(uint16_t state) const { return (state == kStatePending) | is_waiting(state) | is_drawable(state); }
  // Whether an item of this state was admitted and is complete, and waits for late columns or for its priority.
  static bool is_waiting(uint16_t state) { return (state == kStateUnfilled) | (state == kStateAwaiting); }
  // Whether an item of this state waits, of a step that is there or a record in use. A record may also wait for
  // members.
  bool may_wait(uint16_t state) const {
    return is_waiting(state) || (r_.map(index_).is_explicit && state == kStatePending);
  }
  void prefetch_state(uint64_t slot) const { __builtin_prefetch(states() + slot); }

  // ---- counts
  int64_t num_live() const { return counts().live_items.load(std::memory_order_relaxed); }
  // Whether an item that lives may have no mass. The best of an order always has a value.
  bool may_be_massless() const {
    return kind().choice == Choice::kByMass && keeps(kHasPriorities | kIsLatest | kFades);
  }
  // Adds `number` leaves of one state to the counts, but not whether they have mass. is_there: their steps are there, or
  // their records in use.
  void count_leaves(uint16_t state, bool is_there, int64_t number, ItemCounts* counts) const {
    const bool is_item = is_there && is_drawable(state);
    counts->live_items += is_item ? number : 0;
    counts->pending += is_there && is_waiting(state) ? number : 0;
    counts->unused += is_item && state == 0 && counts_uses() ? number : 0;
  }
  // Adds what follows from the mass of one of these leaves (rule P4).
  void count_massless(uint64_t slot, uint16_t state, bool is_there, ItemCounts* counts) const {
    const bool is_massless = is_there && is_drawable(state) && !has_mass(slot);
    counts->massless += is_massless ? 1 : 0;
    counts->unused -= is_massless && state == 0 && counts_uses() ? 1 : 0;
  }

  // ---- under the lock: inner nodes
  //
  // Recomputes the ancestors of the leaves that this critical section changed. The lock does so when it is released.
  // Cost: O(leaves x log8 n).
  static void flush(Held& held, uint32_t index);
  static void flush_all(Held& held);
  // Recomputes every inner node, and every class of priorities, from the leaves. Cost: O(n).
  static void rebuild(Held& held, uint32_t index);
  // The same for the classes alone, with their members in an order (Ranks::rebuild).
  static void rebuild_ranks(Held& held, uint32_t index, const uint32_t* order, size_t count);

 protected:
  const Tree& tree() const { return tree_; }
  const Tree& orders() const { return r_.orders_[index_]; }                                 // of a bounded index
  const Tree& places() const { return r_.queues_[index_]; }                                 // of an index with a queue
  const Tree& dues(Due due) const { return r_.dues_[static_cast<uint32_t>(due)][index_]; }  // of an index that has them
  std::atomic<uint16_t>* states() const { return states_; }
  IndexState& counts() const { return r_.header->index_state[index_]; }

  static constexpr Due kDues[] = {Due::kWait, Due::kAge, Due::kPlace};
  static constexpr uint32_t kHasDues = kIsTimed | kIsAged | kIsLatest;
  static constexpr uint32_t trait_of(Due due) {
    return due == Due::kWait ? kIsTimed : due == Due::kAge ? kIsAged : kIsLatest;
  }

  // Each of these changes one word and notes the leaf for flush().
  void set_mass(Held& held, uint64_t slot, double mass) const {
    held.region.trees_[index_].set_leaf(slot, mass);
    touch(held, slot);
  }
  // A live item of this state gets a mass or loses it (rule P4). Rare, so it is kept out of the loops that call it.
  [[gnu::noinline]] void note_mass(Held& held, uint16_t state, bool had, bool has) const {
    if (had == has || !RELIVE_RULE(P4_massless)) return;
    const int64_t change = has ? 1 : -1;
    held.subtract(counts().massless, change);
    if (state == 0 && counts_uses()) held.add(counts().unused, change);
  }
  void clear_mass(Held& held, uint64_t slot) const {
    if (tree().leaf(slot) != nothing()) set_mass(held, slot, nothing());
  }
  void set_order(Held& held, uint64_t slot, double order) const {
    held.region.orders_[index_].set_leaf(slot, order);
    touch(held, slot);
  }
  void set_place(Held& held, uint64_t record, double place) const {
    held.region.queues_[index_].set_leaf(record, place);
    touch(held, record);
  }
  void set_due(Held& held, Due due, uint64_t slot, double value) const {
    held.region.dues_[static_cast<uint32_t>(due)][index_].set_leaf(slot, value);
    touch(held, slot);
  }
  // The trees themselves, for code that changes many leaves and calls rebuild() afterwards.
  Tree& tree(Held& held) const { return held.region.trees_[index_]; }
  Tree& orders(Held& held) const { return held.region.orders_[index_]; }
  Tree& dues(Held& held, Due due) const { return held.region.dues_[static_cast<uint32_t>(due)][index_]; }

  // The facts from which an item's leaves follow, with the next ticket. Tickets only rise. If a process dies, its last
  // ticket may be lost.
  Standing next_standing(float priority) const {
    const uint64_t ticket = counts().tickets.load(std::memory_order_relaxed) + 1;
    counts().tickets.store(ticket, std::memory_order_relaxed);
    return {priority, ticket, r_.geometry->seed};
  }

  const Region& r_;
  const Tree& tree_;
  std::atomic<uint16_t>* const states_;
  const uint32_t index_;

 private:
  [[gnu::always_inline]] void touch(Held& held, uint64_t slot) const {
    Dirty& dirty = held.dirty;
    if (dirty.count_[index_] == Dirty::kRoom) flush(held, index_);
    dirty.slots_[index_][dirty.count_[index_]++] = slot;
  }
};

}  // namespace relive
