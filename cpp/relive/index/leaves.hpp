// The life of a leaf: an item comes alive, is revalued, is used, and goes. Only this class and recovery
// (recover_leaves.hpp) change the state of a leaf.
//
// A leaf stands for the item that begins at its slot, or for the item of its record (Region::map). The state of a leaf
// (words/region.hpp) says where the item is in its life. The value of a leaf says how it is drawn: it differs from the
// identity of the reduction only while the item is published and can be drawn.
//
//   page opens          window complete            last use
//   ---------> pending ----------------> live ----------------> used up
//               |   | priority to come  ^ |  ^    given back    |
//               |   +-----> awaiting ---+ |  +------------------+
//               | late columns to come  ^ |
//               +-----> unfilled -------+-+ (or awaiting) when the last of its rows has them
//   any of them: deleted -> removed; a row that it needs goes -> ended; the oldest of too many (max_items) -> dropped
//
// The other views of this room have the rest of an item: its leaf in a remover's tree (bounds.hpp), its place in a
// queue (record_queue.hpp), its times (due_times.hpp), a mass that follows from its version (fresh_masses.hpp).
//
// Owner:   a view of one index (index_view.hpp).
// Locking: everything under "the lock" below takes a Held and runs under the table lock.
// Order:   an item comes alive by its leaf in the remover's tree, its own leaf, then its state. It goes by its state,
//          its leaf, then the remover's. If a process dies between these stores, recovery can tell which were made (F3,
//          F4).
// Cost:    O(1) each. Ancestors are recomputed once, when the lock is released (flush).
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "relive/index/bounds.hpp"
#include "relive/index/due_times.hpp"

namespace relive {

class Leaves final : public IndexView {
 public:
  using IndexView::IndexView;

  // ---- draws, at any time
  //
  // A descent in two parts, for a caller that prefetches other memory in between: from points to groups of kGroup
  // leaves, and from there to leaves. nodes[i] and points[i] are those of Tree::descend. Only for kinds that choose by
  // mass.
  static constexpr uint32_t kGroup = Tree::kFanout;
  void descend_to_groups(double* points, uint64_t* nodes, size_t count) const {
    if (tree().num_levels() > 1) tree().descend(tree().num_levels(), 1, points, nodes, count);
  }
  void descend_to_leaves(double* points, uint64_t* nodes, size_t count) const {
    tree().descend(1, 0, points, nodes, count);
  }
  // The leaves that points fall on, kNoLeaf past the end.
  void draw(const double* points, size_t count, uint64_t* slots) const { tree().draw(points, count, slots); }
  // The best `count` leaves, or all leaves, the best first. Only for kinds that choose the best.
  using Node = Tree::Node;
  void best(size_t count, std::vector<Node>* found, std::vector<Node>* open) const { tree().best(count, found, open); }

  // ---- under the lock: an item comes alive
  //
  // A page opened: its slots may become items, except the first num_ended, which never do.
  static void open(Held& held, uint32_t index, uint64_t first_slot, uint32_t count, uint32_t num_ended);
  // The window is complete, but late columns of its rows are still to come.
  static void keep_unfilled(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    DueTimes::begin_wait(held, index, slot);
    leaves.set_state(slot, kStateUnfilled);
    held.add(leaves.counts().pending, 1);
  }
  // All late columns of an unfilled item's rows are there. Returns the result of complete().
  static bool fill(Held& held, uint32_t index, uint64_t slot);
  static bool fill(Held& held, uint32_t index, uint64_t record, float given);
  // The window is complete. True if the leaf is an item now, false if its priority is still to come.
  bool complete(Held& held, uint64_t slot) const;
  // The same for an explicit item. `given` is the priority that comes with it, NaN if none does.
  static bool complete(Held& held, uint32_t index, uint64_t record, float given);
  // An awaiting leaf becomes an item of this priority and mass.
  static void publish(Held& held, uint32_t index, uint64_t slot, float priority, double mass);
  static void count_published(Held& held, uint32_t index, int64_t count);

  // ---- under the lock: an item has another priority, or is used
  static void revalue(Held& held, uint32_t index, uint64_t slot, float priority, double mass) {
    const Leaves leaves(held.region, index);
    leaves.revalue_as(held, slot, priority, mass, leaves.keeps_order());
  }
  // The same for a caller that has called keeps_order() once for many items.
  void revalue_as(Held& held, uint64_t slot, float priority, double mass, bool keeps_order) const {
    const bool had = has_mass(slot);
    const double value = keeps_order ? renew_order(held, slot, priority, mass) : mass;
    if (had != is_mass(value)) note_mass(held, state(slot), had, !had);
    set_mass(held, slot, value);
  }
  // The same for an item that has_mass().
  void revalue_massive(Held& held, uint64_t slot, float priority, double mass, bool keeps_order) const {
    const double value = keeps_order ? renew_order(held, slot, priority, mass) : mass;
    if (!is_mass(value)) note_mass(held, state(slot), true, false);
    set_mass(held, slot, value);
  }
  // The item was drawn once more. True if that was its last use.
  static bool use(Held& held, uint32_t index, uint64_t slot);
  // A draw gives a use back, with the mass and the order (bounds.hpp) that the item had. True if the item can be drawn
  // again.
  static bool give_back(Held& held, uint32_t index, uint64_t slot, double mass, double order);

  // ---- under the lock: an item goes
  //
  // The item is deleted (kStateRemoved), dropped (kStateDropped), or ends because a row that it needs is gone
  // (kStateEnded). It never is an item again. True if the leaf had life. An item that ends unfilled is counted.
  static bool retire(Held& held, uint32_t index, uint64_t slot, uint16_t final_state) {
    return Leaves(held.region, index).retire(held, slot, final_state);
  }
  bool retire(Held& held, uint64_t slot, uint16_t final_state) const;
  // The index's condition keeps out a pending leaf, unless the item passes: the step stays, for the other indexes.
  void keep_out_unless(bool passes, uint64_t slot) const { set_state(slot, passes ? kStatePending : kStateDropped); }
  // The step of a leaf goes. A leaf that a condition kept out, or that was dropped, ends: it has no mass and is in no
  // tree, so only its state changes. True if it was such a leaf; without a branch.
  bool end_kept_out(uint64_t slot) const {
    const uint16_t state = this->state(slot);
    const bool is_out = state == kStateDropped && !keeps(kHasDues);
    set_state(slot, is_out ? kStateEnded : state);
    return is_out;
  }
  static void count_kept_out(Held& held, uint32_t index, uint64_t count) {
    std::atomic<uint64_t>& filtered = held.region.header->index_state[index].filtered;
    held.add(filtered, count);
  }
  // The episode is given up, so the number of steps before a row changes: a leaf that ended counts as deleted too.
  static void remove_ended(Held& held, uint32_t index, uint64_t slot) {
    const Leaves leaves(held.region, index);
    if (leaves.state(slot) == kStateEnded) leaves.set_state(slot, kStateRemoved);
  }

 private:
  bool initial_mass(float given, double* mass) const;
  bool enter(Held& held, uint64_t slot, float given) const;
  void await_priority(Held& held, uint64_t slot) const;
  void count_first_use(Held& held, int64_t change, bool has_mass) const;
  void set_state(uint64_t slot, uint16_t state) const { states()[slot].store(state, std::memory_order_release); }
  // For an index that keeps an order: an item comes alive, or has a new priority. Returns its leaf, `mass` if leaves
  // are masses.
  double begin_order(Held& held, uint64_t slot, float given, double mass) const;
  double renew_order(Held& held, uint64_t slot, float priority, double mass) const;
};

// ---- These functions are inline because each of them is called once for every row that is written.

// The mass with which a complete item enters the index. False if its priority is still to come. given: NaN if no
// priority came with the item or before it.
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
    await_priority(held, slot);
    return false;
  }
  if (keeps_order()) mass = begin_order(held, slot, given, mass);
  set_mass(held, slot, mass);
  RELIVE_FAIL_POINT(publish_leaf);
  set_state(slot, 0);
  if (!is_mass(mass)) note_mass(held, 0, true, false);  // count_published() counts it as an item with a mass
  if (is_timed()) DueTimes(*this).end(held, Due::kWait, slot);
  return true;
}

inline bool Leaves::complete(Held& held, uint64_t slot) const {
  const uint32_t given =
      has_priorities() ? held.region.given(index_, slot).load(std::memory_order_relaxed) : kNoPriority;
  return enter(held, slot, std::bit_cast<float>(given));
}

inline bool Leaves::retire(Held& held, uint64_t slot, uint16_t final_state) const {
  const uint16_t state = states()[slot].load(std::memory_order_relaxed);
  if (state == kStateEnded || state == kStateRemoved) return false;
  if (state == kStateUnfilled && final_state == kStateEnded) held.add(held.region.header->counters.incomplete_items, 1);
  const DueTimes times(*this);
  if (state == kStateDropped && RELIVE_RULE(T3_count))
    times.count_drops(slot);  // a process died before it counted them
  if (is_waiting(state)) held.subtract(counts().pending, 1);
  const bool is_item = is_drawable(state), is_massless = !has_mass(slot);
  set_state(slot, final_state);
  if (final_state == kStateDropped && times.is_dropping(Due::kWait, slot)) RELIVE_FAIL_POINT(wait_ended);
  RELIVE_FAIL_POINT(retire_state);
  clear_mass(held, slot);
  RELIVE_FAIL_POINT(retire_leaf);
  if (is_bounded()) Bounds(*this).clear_order(held, slot);
  if (keeps(kHasDues)) times.end_all(held, slot);
  if (is_item) {
    if (is_massless) note_mass(held, state, false, true);  // it goes as an item with a mass
    held.subtract(counts().live_items, 1);
    if (state == 0 && counts_uses()) held.subtract(counts().unused, 1);
  }
  return has_life(state);
}

// Raises the running maximum of the priorities given to an index, and its mass.
void note_priority(Held& held, uint32_t index, float priority);

}  // namespace relive
