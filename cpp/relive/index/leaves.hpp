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
#include "relive/index/versions.hpp"
#include "relive/words/held.hpp"
#include "relive/words/testing.hpp"

namespace relive {

// What follows from the leaves of an index.
struct ItemCounts {
  int64_t live_items = 0, pending = 0, unused = 0;
};

// What follows from the leaves of rows, and how many of these have life, or were deleted.
struct SettledRows {
  ItemCounts counts;
  uint64_t with_life = 0, removed = 0;
};

class Leaves final {
 public:
  Leaves(const Region& r, uint32_t index) : r_(r), tree_(r.trees_[index]), states_(r.states_[index]), index_(index) {}

  // ---- at any time --------------------------------------------------------------------------------------------------
  const IndexConfig& config() const { return r_.header->indexes[index_]; }
  const Kind& kind() const { return kind_of(config().sampling); }
  const ItemMap& map() const { return r_.map(index_); }
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
    return (state <= kMostUses) & ((most == 0) | (state < most));  // no branch, as in has_life
  }
  // Whether a leaf of this state still is, or may become, an item.
  // Without a branch: which of many rows are alive may be anybody's guess.
  bool has_life(uint16_t state) const { return (state == kStatePending) | is_waiting(state) | is_drawable(state); }
  // Whether an item of this state is let in and whole, and waits: for late columns, or for its priority.
  static bool is_waiting(uint16_t state) { return (state == kStateUnfilled) | (state == kStateAwaiting); }
  int64_t num_live() const { return counts().live_items.load(std::memory_order_relaxed); }
  // Whether update_priorities may be called: the sampler or the remover looks at them.
  bool has_priorities() const { return has(kHasPriorities); }
  // Whether the index holds no more than max_items; then, where its remover finds the item of a slot, if it does.
  bool is_bounded() const { return has(kIsBounded); }
  double order(uint64_t slot) const { return is_bounded() ? orders().leaf(slot) : 0.0; }
  // Whether it has records, and a remover that chooses among them (rule R5).
  bool has_turns() const { return has(kHasTurns); }
  bool has_order(uint64_t slot) const { return orders().leaf(slot) != orders().identity(); }
  // Whether its items wait no longer than max_wait_s; then, since when the longest of them does (infinity: none), and
  // whether this one is noted as waiting.
  bool is_timed() const { return has(kIsTimed); }
  double waits_since() const { return soonest(Due::kWait); }
  bool has_wait(uint64_t slot) const { return has_due(Due::kWait, slot); }
  // The same of max_staleness, whose items have their versions noted, and of a sampler of the items that came last.
  bool is_aged() const { return has(kIsAged); }
  bool is_latest() const { return has(kIsLatest); }
  double soonest(Due due) const { return dues(due).total(); }
  bool has_due(Due due, uint64_t slot) const { return dues(due).leaf(slot) != dues(due).identity(); }
  // Where masses fade: changes while they are moved to another base, odd meanwhile (rule Z3); 0 of all others.
  uint64_t base() const { return has(kFades) ? counts().base.load(std::memory_order_acquire) : 0; }
  // The mass that an item which can be drawn has by what it is now, where that follows from it; else this one.
  double mass_now(uint64_t slot, double mass) const { return has(kIsLatest | kFades) ? fresh_mass(slot) : mass; }
  // Whether an item of this state, of a step that is there or a record in use, is one that waits: of a record also for
  // members.
  bool may_wait(uint16_t state) const {
    return is_waiting(state) || (r_.map(index_).is_explicit && state == kStatePending);
  }
  // Whether items are drawn by the ranks of their priorities; then, the classes that they stand in.
  bool is_ranked() const { return has(kIsRanked); }
  const Ranks& ranks() const { return r_.ranks_[index_]; }
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
    held.add(leaves.counts().pending, 1);
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
    leaves.revalue_as(held, slot, priority, mass, leaves.keeps_order());
  }
  // The same for a caller that has asked keeps_order(), once for many.
  void revalue_as(Held& held, uint64_t slot, float priority, double mass, bool keeps_order) const {
    set_mass(held, slot, keeps_order ? renew_order(held, slot, priority, mass) : mass);
  }
  // Whether the item has more than its mass: where a remover finds it, a place in an order, a version.
  bool keeps_order() const { return has(kIsBounded | kIsOrdered | kIsAged | kIsLatest | kFades); }
  // Drawn once more; true where that was the last time.
  static bool use(Held& held, uint32_t index, uint64_t slot);
  // A use given back, with the leaf and order() that it had. True where the item can be drawn again.
  static bool give_back(Held& held, uint32_t index, uint64_t slot, double mass, double order);
  // Deleted (kStateRemoved), or a row that it needs is gone (kStateEnded): never an item again. True where it had life.
  // What ends unfilled is counted.
  static bool retire(Held& held, uint32_t index, uint64_t slot, uint16_t final_state);
  // The item of a bounded index that its remover would have go, kNoLeaf where there is none. Works off what was touched.
  static uint64_t next_to_go(Held& held, uint32_t index);
  // ---- under the lock: records that a remover chooses from (rule R5) --------------------------------------------------
  // A free one, kNoLeaf where none is. Works off what was touched.
  static uint64_t free_record(Held& held, uint32_t index);
  // The record whose item goes next: one that was used up, that has waited for as many as there may be, that the remover
  // chooses, or that has waited longest. Works off what was touched.
  static uint64_t next_record_to_go(Held& held, uint32_t index);
  // It was taken, the `number`-th one, and waits; or its word says that it is free, or retired.
  static void begin_turn(Held& held, uint32_t index, uint64_t record, uint64_t number) {
    const Leaves leaves(held.region, index);
    if (leaves.has_turns()) leaves.set_turn(held, record, static_cast<double>(number + 1));
  }
  static void note_free(Held& held, uint32_t index, uint64_t record) {
    const Leaves leaves(held.region, index);
    if (leaves.has_turns()) leaves.set_turn(held, record, leaves.is_free(record) ? kFreeTurn : leaves.no_turn());
  }
  // The item waits from now on, if its index counts how long and it does not wait already (rule T1).
  static void begin_wait(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    if (!leaves.is_timed() || leaves.has_wait(slot) || !RELIVE_RULE(T1_since)) return;
    leaves.set_due(held, Due::kWait, slot, held.now_s());
    RELIVE_FAIL_POINT(wait_begun);
  }
  // The item of an index that is due first, kNoLeaf where there is none. Works off what was touched.
  static uint64_t first_due(Held& held, uint32_t index, Due due, double* since) {
    flush(held, index);
    const Tree& dues = held.region.dues_[static_cast<uint32_t>(due)][index];
    const uint64_t slot = dues.best();
    if (slot != kNoLeaf) *since = dues.leaf(slot);
    return slot;
  }
  // It is about to go as kStateDropped, for it is overdue. What is counted then stands in the place of its time
  // from now on, below 0, so that who dies behind the state leaves what to count (rule T3).
  static void note_drop(Held& held, uint32_t index, Due due, uint64_t slot) {
    const Leaves leaves(held.region, index);
    const uint64_t count = leaves.num_dropped(due).load(std::memory_order_relaxed) + 1;
    leaves.set_due(held, due, slot, -static_cast<double>(count));
    RELIVE_FAIL_POINT(wait_noted);
  }
  // So many have come since that it is none of those which are drawn (rule Z4). It stays an item.
  static void leave_latest(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    leaves.set_due(held, Due::kPlace, slot, leaves.dues(Due::kPlace).identity());
    RELIVE_FAIL_POINT(latest_left);
    leaves.clear_mass(held, slot);
  }
  // Masses that fade are told from another base on, all leaves anew: a newcomer's version, or the learner's (rule Z3).
  static void move_base(Held& held, uint32_t index);
  // Whether the learner's version was set back so far that newcomers would come to the least mass there is.
  bool is_base_far() const;
  // Its index's condition keeps out what is pending, and so in no tree yet: never an item there, the step stays, for others.
  void keep_out_unless(bool passes, uint64_t slot) const { set_state(slot, passes ? kStatePending : kStateDropped); }
  // What a condition kept out, or else went from this index alone, ends with its step: it has no mass and is in no tree, so
  // there is nothing but its state. True where it did; without a branch.
  bool end_kept_out(uint64_t slot) const {
    const uint16_t state = this->state(slot);
    const bool is_out = state == kStateDropped && !has(kHasDues);
    set_state(slot, is_out ? kStateEnded : state);
    return is_out;
  }
  static void count_kept_out(Held& held, uint32_t index, uint64_t count) {
    std::atomic<uint64_t>& filtered = held.region.header->index_state[index].filtered;
    held.add(filtered, count);
  }
  // Of an episode that is given up: what ended counts as deleted, too, for how many steps came before it will change.
  static void remove_ended(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    if (leaves.state(slot) == kStateEnded) leaves.set_state(slot, kStateRemoved);
  }

  // ---- under the lock: all of them ----------------------------------------------------------------------------------
  static void flush(Held& held, uint32_t index);  // ancestors of what was touched
  static void flush_all(Held& held);
  // Recovery: of a leaf that cannot be drawn, the value goes. Inner nodes: rebuild().
  // state: the leaf's. is_there: of a step, or of a record in use. has(traits): what the index keeps of its items, of
  // kKept. Where that is known when this is compiled, nothing is asked of a leaf that is not kept: recovery looks at all
  // of them. In index/settle.hpp.
  template <class Has>
  void settle(Held& held, uint64_t slot, uint16_t state, bool is_there, Has has) const;
  // The same for leaves side by side, all of steps, or all of none; counts what they are.
  template <class Has>
  void settle_run(Held& held, uint64_t first, uint64_t count, bool is_there, Has has, SettledRows* rows) const;
  static constexpr uint32_t kKept = kIsBounded | kHasTurns | kIsTimed | kIsAged | kIsLatest | kFades;
  bool keeps_just(uint32_t traits) const { return (r_.traits[index_] & kKept) == traits; }
  bool keeps(uint32_t traits) const { return has(traits); }
  uint32_t kept() const { return r_.traits[index_] & kKept; }
  static void rebuild(Held& held, uint32_t index);
  // Every mass of an index that has an exponent above 0 anew, of another one, in this hold (rule H2): some 60 ns a leaf.
  static void raise(Held& held, uint32_t index, double exponent);
  // Recovery: a change that somebody died in is made to its end.
  static void finish_raise(Held& held);
  // Whether what draws the item of a slot and what removes it are of one priority, where both look at it (rule R3).
  bool is_of_one_priority(uint64_t slot) const;
  // Counts so many leaves of one state; is_there: of steps, or of records in use.
  void count_leaves(uint16_t state, bool is_there, int64_t number, ItemCounts* counts) const {
    const bool is_item = is_there && is_drawable(state);
    counts->live_items += is_item ? number : 0;
    counts->pending += is_there && is_waiting(state) ? number : 0;
    counts->unused += is_item && state == 0 && counts_uses() ? number : 0;
  }
  static void store_counts(Held& held, uint32_t index, const ItemCounts& counted);
  // What is wrong with the place of a record in the order of those that go, in words; null if nothing is (rule R5).
  const char* wrong_turn(uint64_t record, bool is_used) const;
  // Which of the index's counts differs from these, in words; null if none does.
  const char* wrong_count(const ItemCounts& counted) const;
  // What is wrong with how an item is timed by versions and by its place, and the mass that follows; null if nothing is.
  const char* wrong_freshness(uint64_t slot, bool is_there, bool is_item) const;
  // What does not follow from the leaves below, in words; null if all does.
  const char* broken_node() const;

 private:
  const Tree& tree() const { return tree_; }
  const Tree& turns() const { return r_.turns_[index_]; }    // of records that a remover chooses from
  const Tree& orders() const { return r_.orders_[index_]; }  // of a bounded index
  const Tree& dues(Due due) const { return r_.dues_[static_cast<uint32_t>(due)][index_]; }  // of one that has them
  std::atomic<uint16_t>* states() const { return states_; }
  IndexState& counts() const { return r_.header->index_state[index_]; }
  bool has(uint32_t trait) const { return (r_.traits[index_] & trait) != 0; }
  static constexpr uint32_t kHasDues = kIsTimed | kIsAged | kIsLatest;
  static constexpr uint32_t trait_of(Due due) {
    return due == Due::kWait ? kIsTimed : due == Due::kAge ? kIsAged : kIsLatest;
  }
  static constexpr Due kDues[] = {Due::kWait, Due::kAge, Due::kPlace};
  // What of a leaf of this state may be timed so. is_there: a step, or a record in use.
  bool may_be_due(Due due, uint16_t state, bool is_there) const {
    return is_there && (due == Due::kWait ? may_wait(state) : state <= kMostUses);
  }
  std::atomic<uint64_t>& num_dropped(Due due) const {
    return due == Due::kWait ? counts().timed_out : counts().expired;
  }
  void settle_priorities(Held& held, uint64_t begin, uint64_t end) const;
  template <class Has>
  friend class SettledLeaves;
  bool is_of_one_row() const { return !map().is_explicit && !config().sequence.is_set(); }
  double fresh_mass(uint64_t slot) const;
  double faded_mass(uint32_t version) const;
  double latest_mass(uint64_t slot) const { return has_due(Due::kPlace, slot) ? 1.0 : nothing(); }
  bool initial_mass(float given, double* mass) const;
  bool enter(Held& held, uint64_t slot, float given) const;
  void count_first_use(Held& held, int64_t change) const;
  void raise_leaves(Held& held) const;
  bool has_no_priority(uint64_t slot) const;
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
  // Turns, the lowest first: a free record; one that was used up, by the ticket that it took then; one that waits, by
  // how many had come. An item that can be drawn has none: the remover sees it.
  static constexpr double kUsedUp = 0.5 * kFreeTurn;
  double no_turn() const { return turns().identity(); }
  bool is_free(uint64_t record) const { return (r_.map(index_).word(record) & 3) == 0; }
  bool is_turn(double turn, uint64_t record, bool is_used) const;
  double used_up_turn() const { return kUsedUp + static_cast<double>(next_standing(0.0f).ticket); }
  void settle_turn(Held& held, uint64_t record, bool is_used) const;
  void set_turn(Held& held, uint64_t record, double turn) const {
    held.region.turns_[index_].set_leaf(record, turn);
    touch(held, record);
  }
  void end_due(Held& held, Due due, uint64_t slot) const {
    if (!has_due(due, slot)) return;
    count_drop(due, slot);
    set_due(held, due, slot, dues(due).identity());
    RELIVE_FAIL_POINT(wait_over);
  }
  void end_dues(Held& held, uint64_t slot) const {
    for (const Due due : kDues)
      if (has(trait_of(due))) end_due(held, due, slot);
  }
  bool is_noted(Due due, uint64_t slot) const { return has(trait_of(due)) && dues(due).leaf(slot) < 0.0; }  // note_drop
  // Again, too: what is stored was noted before (T3).
  void count_drop(Due due, uint64_t slot) const {
    if (!is_noted(due, slot) || state(slot) != kStateDropped) return;
    num_dropped(due).store(static_cast<uint64_t>(-dues(due).leaf(slot)), std::memory_order_relaxed);
    RELIVE_FAIL_POINT(wait_counted);
  }
  void count_drops(uint64_t slot) const {
    for (const Due due : {Due::kWait, Due::kAge})
      if (has(trait_of(due))) count_drop(due, slot);
  }
  void set_due(Held& held, Due due, uint64_t slot, double value) const {
    held.region.dues_[static_cast<uint32_t>(due)][index_].set_leaf(slot, value);
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
    held.add(counts().pending, 1);
    return false;
  }
  if (keeps_order()) mass = begin_order(held, slot, given, mass);
  set_mass(held, slot, mass);
  RELIVE_FAIL_POINT(publish_leaf);
  set_state(slot, 0);
  if (is_timed()) end_due(held, Due::kWait, slot);
  return true;
}

inline bool Leaves::complete(Held& held, uint32_t index, uint64_t slot) {
  const Leaves leaves(held.region, index);
  const bool may_be_given = leaves.has_priorities();
  const uint32_t given = may_be_given ? held.region.given(index, slot).load(std::memory_order_relaxed) : kNoPriority;
  return leaves.enter(held, slot, std::bit_cast<float>(given));
}

inline bool Leaves::retire(Held& held, uint32_t index, uint64_t slot, uint16_t final_state) {
  const Leaves leaves(held.region, index);
  const uint16_t state = leaves.states()[slot].load(std::memory_order_relaxed);
  if (state == kStateEnded || state == kStateRemoved) return false;
  if (state == kStateUnfilled && final_state == kStateEnded) held.add(held.region.header->counters.incomplete_items, 1);
  if (state == kStateDropped && RELIVE_RULE(T3_count)) leaves.count_drops(slot);  // of the dead
  if (is_waiting(state)) held.subtract(leaves.counts().pending, 1);
  leaves.set_state(slot, final_state);
  if (final_state == kStateDropped && leaves.is_noted(Due::kWait, slot)) RELIVE_FAIL_POINT(wait_ended);
  RELIVE_FAIL_POINT(retire_state);
  leaves.clear_mass(held, slot);
  RELIVE_FAIL_POINT(retire_leaf);
  if (leaves.is_bounded()) leaves.clear_order(held, slot);
  if (leaves.has(kHasDues)) leaves.end_dues(held, slot);
  if (leaves.is_drawable(state)) held.subtract(leaves.counts().live_items, 1);
  if (state == 0 && leaves.counts_uses()) held.subtract(leaves.counts().unused, 1);
  return leaves.has_life(state);
}

// Raises the running maximum of the priorities given to an index, and its mass.
void note_priority(Held& held, uint32_t index, float priority);

}  // namespace relive
