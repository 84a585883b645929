// The life of a leaf: awaits, published, revalued, used, retired. The one room that knows trees and leaf states.
//
// A leaf stands for the item that begins at its slot, or for its record's (Region::map). Its state (words/region.hpp)
// says what it is to the index; its value, how it is drawn: it differs from the reduction's identity only while the item
// is published and may be drawn.
//
//   page opens          window complete            last use
//   ---------> pending ----------------> live ----------------> used up
//               |   | priority to come  ^ |  ^    given back    |
//               |   +-----> awaiting ---+ |  +------------------+
//               | late columns to come  ^ |
//               +-----> unfilled -------+-+ (or awaiting) when the last of its rows has them
//   any of them: deleted -> removed; a row that it needs goes -> ended; the oldest of too many (max_items) -> dropped
//
// Each item that comes alive in an index that keeps an order takes a ticket. Where the sampler has an order, and no mass,
// the leaf follows from it (index/kinds.hpp). Where an index of rows has max_items, each item that can be drawn has a
// second leaf, in the remover's tree (rule R1); that tree's choice goes. Where it has max_wait_s, an item that waits has
// one in a tree of minima: since when (rule T1).
//
// Owner:   a Leaves is a view of one index of a region, made where it is used.
// Locking: everything that takes a Held is under the table lock; the rest may be called at any time. Lock-free readers
//          read the page's word before a value or a state and look at the word again afterwards (rules G2, G4).
// Order:   an item comes alive by the remover's leaf, its own, then its state; it goes by its state, its leaf, then the
//          remover's.
//          Whoever dies in between leaves what recovery tells apart (rules F3, F4).
// Cost:    O(1) each, but ancestors: they are recomputed once, when the lock is given back (Leaves::flush).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "relive/index/kinds.hpp"
#include "relive/words/held.hpp"
#include "relive/words/testing.hpp"

namespace relive {

// What follows from the leaves of an index.
struct ItemCounts {
  int64_t live_items = 0, pending = 0, unused = 0;
};

class Leaves final {
 public:
  Leaves(const Region& r, uint32_t index) : r_(r), tree_(r.trees_[index]), states_(r.states_[index]), index_(index) {}

  // ---- at any time --------------------------------------------------------------------------------------------------
  const IndexConfig& config() const { return r_.header->indexes[index_]; }
  const Kind& kind() const { return kind_of(config().sampling); }
  double mass(uint64_t slot) const { return tree().leaf(slot); }  // acquire
  double total() const { return tree().total(); }                 // reduction of all leaves
  double nothing() const { return tree().identity(); }            // the value of a leaf that cannot be drawn
  bool has_mass(uint64_t slot) const { return is_mass(mass(slot)); }
  bool has_any() const { return is_mass(total()); }
  // Above nothing() of every reduction: 0 and both infinities.
  static bool is_mass(double value) { return value > 0.0 && value <= std::numeric_limits<double>::max(); }
  uint16_t state(uint64_t slot) const { return states()[slot].load(std::memory_order_acquire); }
  // Whether keys still lead to the item's rows: it was published, and neither deleted nor ended since.
  bool is_published(uint64_t slot) const { return state(slot) <= kMostUses; }
  // Whether an item of this state can be drawn.
  bool is_drawable(uint16_t state) const {
    const uint32_t most = r_.max_times(index_);
    return state <= kMostUses && (most == 0 || state < most);
  }
  // Whether a leaf of this state still is, or may become, an item.
  bool has_life(uint16_t state) const { return state == kStatePending || is_waiting(state) || is_drawable(state); }
  // Whether an item of this state is let in and whole, and waits: for late columns, or for its priority.
  static bool is_waiting(uint16_t state) { return state == kStateUnfilled || state == kStateAwaiting; }
  int64_t num_live() const { return counts().live_items.load(std::memory_order_relaxed); }
  // Whether update_priorities may be called: the sampler or the remover looks at them.
  bool has_priorities() const { return has(kHasPriorities); }
  // Whether the index holds no more than max_items; then, where its remover finds the item of a slot, if it does.
  bool is_bounded() const { return has(kIsBounded); }
  double order(uint64_t slot) const { return is_bounded() ? orders().leaf(slot) : 0.0; }
  bool has_order(uint64_t slot) const { return orders().leaf(slot) != orders().identity(); }
  // Whether its items wait no longer than max_wait_s; then, since when the longest of them does (infinity: none), and
  // whether this one is noted as waiting.
  bool is_timed() const { return has(kIsTimed); }
  double waits_since() const { return waits().total(); }
  bool has_wait(uint64_t slot) const { return waits().leaf(slot) != waits().identity(); }
  // Whether the item of a step that is there, or of a record in use, is one that waits: of a record also for members.
  bool may_wait(uint64_t slot) const {
    return is_waiting(state(slot)) || (r_.map(index_).is_explicit && state(slot) == kStatePending);
  }
  bool counts_uses() const { return r_.max_times(index_) != 0; }
  void prefetch(uint64_t slot) const { tree().prefetch(slot); }
  void prefetch_state(uint64_t slot) const { __builtin_prefetch(states() + slot); }

  // A descent in two parts, for a caller that asks for other memory in between: points to groups of kGroup leaves, and
  // from there to leaves. nodes[i] and points[i] as in Tree::descend. Of kinds that choose by mass.
  static constexpr uint32_t kGroup = Tree::kFanout;
  void descend_to_groups(double* points, uint64_t* nodes, size_t count) const {
    if (tree().num_levels() > 1) tree().descend(tree().num_levels(), 1, points, nodes, count);
  }
  void descend_to_leaves(double* points, uint64_t* nodes, size_t count) const {
    tree().descend(1, 0, points, nodes, count);
  }
  static constexpr uint64_t kNoLeaf = Tree::kNone;
  // The leaves that points fall on, kNoLeaf past the end.
  void draw(const double* points, size_t count, uint64_t* slots) const { tree().draw(points, count, slots); }
  // The best `count`, or all there are, of kinds that choose the best; the best first.
  using Node = Tree::Node;
  void best(size_t count, std::vector<Node>* found, std::vector<Node>* open) const { tree().best(count, found, open); }

  // ---- under the lock: one leaf's life ------------------------------------------------------------------------------
  // A page opened: its slots may become items, the first num_ended of them never.
  static void open(Held& held, uint32_t index, uint64_t first_slot, uint32_t count, uint32_t num_ended);
  // The window is complete, late columns of its rows are still to come.
  static void keep_unfilled(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    begin_wait(held, index, slot);
    leaves.set_state(slot, kStateUnfilled);
    leaves.counts().pending.fetch_add(1, std::memory_order_relaxed);
  }
  // The late columns of an unfilled item's rows are all there. True where it is an item now, as complete() says.
  static bool fill(Held& held, uint32_t index, uint64_t slot);
  static bool fill(Held& held, uint32_t index, uint64_t record, float given);
  // The window is complete. True where the leaf is an item now, false where its priority has still to come.
  static bool complete(Held& held, uint32_t index, uint64_t slot);
  // The same for an explicit item: its priority comes with it, or not (NaN).
  static bool complete(Held& held, uint32_t index, uint64_t record, float given);
  // An awaiting leaf becomes an item of this priority and mass.
  static void publish(Held& held, uint32_t index, uint64_t slot, float priority, double mass);
  static void count_published(Held& held, uint32_t index, int64_t count);
  static void revalue(Held& held, uint32_t index, uint64_t slot, float priority, double mass) {
    const Leaves leaves(held.region, index);
    leaves.set_mass(held, slot, leaves.keeps_order() ? leaves.renew_order(held, slot, priority, mass) : mass);
  }
  // Drawn once more; true where that was the last time.
  static bool use(Held& held, uint32_t index, uint64_t slot);
  // A use given back, with the leaf and order() that it had. True where the item can be drawn again.
  static bool give_back(Held& held, uint32_t index, uint64_t slot, double mass, double order);
  // Deleted (kStateRemoved), or a row that it needs is gone (kStateEnded): never an item again. True where it had life.
  // What ends unfilled is counted.
  static bool retire(Held& held, uint32_t index, uint64_t slot, uint16_t final_state);
  // The item of a bounded index that its remover would have go, kNoLeaf where there is none. Works off what was touched.
  static uint64_t next_to_go(Held& held, uint32_t index);
  // The item waits from now on, if its index counts how long and it does not wait already (rule T1).
  static void begin_wait(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    if (!leaves.is_timed() || leaves.has_wait(slot) || !RELIVE_RULE(T1_since)) return;
    leaves.set_wait(held, slot, held.now_s());
    RELIVE_FAIL_POINT(wait_begun);
  }
  // The item of a timed index that has waited longest, kNoLeaf where none waits. Works off what was touched.
  static uint64_t waits_longest(Held& held, uint32_t index, double* since) {
    flush(held, index);
    const uint64_t slot = held.region.waits_[index].best();
    if (slot != kNoLeaf) *since = held.region.waits_[index].leaf(slot);
    return slot;
  }
  // It is about to go as kStateDropped, for it has waited too long. What is counted then stands in the place of its time
  // from now on, below 0, so that who dies behind the state leaves what to count (rule T3).
  static void note_drop(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    const uint64_t count = leaves.counts().timed_out.load(std::memory_order_relaxed) + 1;
    leaves.set_wait(held, slot, -static_cast<double>(count));
    RELIVE_FAIL_POINT(wait_noted);
  }
  // Its index's condition keeps it out: never an item there, the step stays, for others. True where it had life.
  static bool keep_out(Held& held, uint32_t index, uint64_t slot) {
    std::atomic<uint64_t>& filtered = held.region.header->index_state[index].filtered;
    const bool had_life = retire(held, index, slot, kStateDropped);
    filtered.store(filtered.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return had_life;
  }
  // Of an episode that is given up: what ended counts as deleted, too, for how many steps came before it will change.
  static void remove_ended(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    if (leaves.state(slot) == kStateEnded) leaves.set_state(slot, kStateRemoved);
  }

  // ---- under the lock: all of them ----------------------------------------------------------------------------------
  static void flush(Held& held, uint32_t index);  // ancestors of what was touched
  static void flush_all(Held& held);
  // Recovery: of a leaf that cannot be drawn, the value goes; returns whether it can. Inner nodes: rebuild().
  static bool settle(Held& held, uint32_t index, uint64_t slot, bool is_step);
  static void rebuild(Held& held, uint32_t index);
  // Whether what draws the item of a slot and what removes it are of one priority, where both look at it (rule R3).
  bool is_of_one_priority(uint64_t slot) const;
  // Counts one leaf; is_there: of a step, or of a record in use.
  void count(uint64_t slot, bool is_there, bool is_item, ItemCounts* counts) const {
    const uint16_t state = this->state(slot);
    counts->live_items += is_item ? 1 : 0;
    counts->pending += is_there && is_waiting(state) ? 1 : 0;
    counts->unused += is_item && state == 0 && counts_uses() ? 1 : 0;
  }
  static void store_counts(Held& held, uint32_t index, const ItemCounts& counted);
  // Which of the index's counts differs from these, in words; null if none does.
  const char* wrong_count(const ItemCounts& counted) const;
  // What does not follow from the leaves below, in words; null if all does.
  const char* broken_node() const;

 private:
  const Tree& tree() const { return tree_; }
  const Tree& orders() const { return r_.orders_[index_]; }  // of a bounded index
  const Tree& waits() const { return r_.waits_[index_]; }    // of a timed one
  std::atomic<uint16_t>* states() const { return states_; }
  IndexState& counts() const { return r_.header->index_state[index_]; }
  bool has(uint32_t trait) const { return (r_.traits[index_] & trait) != 0; }
  bool keeps_order() const { return has(kIsBounded | kIsOrdered); }
  bool initial_mass(float given, double* mass) const;
  bool enter(Held& held, uint64_t slot, float given) const;
  void count_first_use(int64_t change) const;
  void set_state(uint64_t slot, uint16_t state) const { states()[slot].store(state, std::memory_order_release); }
  void set_mass(Held& held, uint64_t slot, double mass) const {
    held.region.trees_[index_].set_leaf(slot, mass);
    touch(held, slot);
  }
  void clear_mass(Held& held, uint64_t slot) const {
    if (tree().leaf(slot) != nothing()) set_mass(held, slot, nothing());
  }
  // Of an index that keeps an order: an item comes alive, or has a new priority. Returns its leaf, `mass` where it is one.
  double begin_order(Held& held, uint64_t slot, float given, double mass) const;
  double renew_order(Held& held, uint64_t slot, float priority, double mass) const;
  Standing next_standing(float priority) const;
  void clear_order(Held& held, uint64_t slot) const {
    if (!has_order(slot)) return;
    set_order(held, slot, orders().identity());
    RELIVE_FAIL_POINT(order_cleared);
  }
  void set_order(Held& held, uint64_t slot, double order) const {
    held.region.orders_[index_].set_leaf(slot, order);
    touch(held, slot);
  }
  void end_wait(Held& held, uint64_t slot) const {
    if (!has_wait(slot)) return;
    count_drop(slot);
    set_wait(held, slot, waits().identity());
    RELIVE_FAIL_POINT(wait_over);
  }
  bool is_noted(uint64_t slot) const { return is_timed() && waits().leaf(slot) < 0.0; }  // by note_drop
  // Again, too: what is stored was noted before (T3).
  void count_drop(uint64_t slot) const {
    if (!is_noted(slot) || state(slot) != kStateDropped) return;
    counts().timed_out.store(static_cast<uint64_t>(-waits().leaf(slot)), std::memory_order_relaxed);
    RELIVE_FAIL_POINT(wait_counted);
  }
  void set_wait(Held& held, uint64_t slot, double since) const {
    held.region.waits_[index_].set_leaf(slot, since);
    touch(held, slot);
  }
  void touch(Held& held, uint64_t slot) const {
    Dirty& dirty = held.dirty;
    if (dirty.count_[index_] == Dirty::kRoom) flush(held, index_);
    dirty.slots_[index_][dirty.count_[index_]++] = slot;
  }

  const Region& r_;
  const Tree& tree_;
  std::atomic<uint16_t>* const states_;
  const uint32_t index_;
};

// ---- in here and not in leaves.cpp, for each of them is called once for every row that is written ------------------

// The mass with which a complete item enters the index, or false where its priority has still to come.
// given: NaN where none came with it or before it.
inline bool Leaves::initial_mass(float given, double* mass) const {
  const IndexConfig& config = this->config();
  if (!has_priorities()) {
    *mass = 1.0;
    return true;
  }
  if (!std::isnan(given)) {
    *mass = leaf_of(config, given);
    return true;
  }
  if (config.initial == Initial::kGiven) return false;
  *mass = config.initial == Initial::kMax ? counts().max_mass.load(std::memory_order_relaxed)
                                          : leaf_of(config, static_cast<float>(config.initial_number));
  return true;
}

inline bool Leaves::enter(Held& held, uint64_t slot, float given) const {
  double mass = 0.0;
  if (!initial_mass(given, &mass)) {
    begin_wait(held, index_, slot);
    set_state(slot, kStateAwaiting);
    counts().pending.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  if (keeps_order()) mass = begin_order(held, slot, given, mass);
  set_mass(held, slot, mass);
  RELIVE_FAIL_POINT(publish_leaf);
  set_state(slot, 0);
  if (is_timed()) end_wait(held, slot);
  return true;
}

inline bool Leaves::complete(Held& held, uint32_t index, uint64_t slot) {
  const Leaves leaves(held.region, index);
  const bool may_be_given = leaves.has_priorities();
  constexpr float kNoneGiven = std::numeric_limits<float>::quiet_NaN();
  return leaves.enter(held, slot, may_be_given ? held.region.marks[slot].priority_given() : kNoneGiven);
}

inline bool Leaves::retire(Held& held, uint32_t index, uint64_t slot, uint16_t final_state) {
  const Leaves leaves(held.region, index);
  const uint16_t state = leaves.states()[slot].load(std::memory_order_relaxed);
  if (state == kStateEnded || state == kStateRemoved) return false;
  if (state == kStateUnfilled && final_state == kStateEnded)
    held.region.header->counters.incomplete_items.fetch_add(1, std::memory_order_relaxed);
  if (state == kStateDropped && RELIVE_RULE(T3_count)) leaves.count_drop(slot);  // of the dead
  if (is_waiting(state)) leaves.counts().pending.fetch_sub(1, std::memory_order_relaxed);
  leaves.set_state(slot, final_state);
  if (final_state == kStateDropped && leaves.is_noted(slot)) RELIVE_FAIL_POINT(wait_ended);
  RELIVE_FAIL_POINT(retire_state);
  leaves.clear_mass(held, slot);
  RELIVE_FAIL_POINT(retire_leaf);
  if (leaves.is_bounded()) leaves.clear_order(held, slot);
  if (leaves.is_timed()) leaves.end_wait(held, slot);
  if (leaves.is_drawable(state)) leaves.counts().live_items.fetch_sub(1, std::memory_order_relaxed);
  if (state == 0 && leaves.counts_uses()) leaves.counts().unused.fetch_sub(1, std::memory_order_relaxed);
  return leaves.has_life(state);
}

// Raises the running maximum of the priorities given to an index, and its mass.
void note_priority(Held& held, uint32_t index, float priority);

}  // namespace relive
