#include "relive/index/leaves.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "relive/index/versions.hpp"
#include "relive/words/rng.hpp"
#include "relive/words/sync.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr double kFarthest = 512.0;                          // versions from the base on, in powers of two of the mass
constexpr double kLeastPower = -1000.0, kMostPower = 900.0;  // 2^60 leaves of the largest mass have a finite sum

double log2_a_version(const IndexConfig& config) { return -std::log2(config.decay); }

// Whether each inner node is the reduction of its children.
bool follows(const Tree& tree, Reduction reduction) {
  uint64_t size = tree.num_leaves();
  for (uint32_t level = 1; level < tree.num_levels(); ++level) {
    const uint64_t children = size;
    size = (size + Tree::kFanout - 1) / Tree::kFanout;
    for (uint64_t node = 0; node < size; ++node) {
      double value = tree.identity();
      for (uint64_t child = node * Tree::kFanout; child < children && child < (node + 1) * Tree::kFanout; ++child) {
        const double next = tree.node(level - 1, child);
        value = reduction == Reduction::kSum   ? value + next
                : reduction == Reduction::kMin ? std::fmin(value, next)
                                               : std::fmax(value, next);
      }
      if (value != tree.node(level, node)) return false;
    }
  }
  return true;
}

}  // namespace

void Leaves::open(Held& held, uint32_t index, uint64_t first_slot, uint32_t count, uint32_t num_ended) {
  std::atomic<uint16_t>* states = held.region.states_[index] + first_slot;  // others may be reading
  for (uint32_t k = 0; k < count; ++k) states[k].store(k < num_ended ? kStateEnded : kStatePending, kRelaxed);
}

bool Leaves::complete(Held& held, uint32_t index, uint64_t record, float given) {
  return Leaves(held.region, index).enter(held, record, given);
}

bool Leaves::fill(Held& held, uint32_t index, uint64_t slot) {
  held.subtract(held.region.header->index_state[index].pending, 1);
  return complete(held, index, slot);
}

bool Leaves::fill(Held& held, uint32_t index, uint64_t record, float given) {
  held.subtract(held.region.header->index_state[index].pending, 1);
  return complete(held, index, record, given);
}

void Leaves::publish(Held& held, uint32_t index, uint64_t slot, float priority, double mass) {
  const Leaves leaves(held.region, index);
  held.subtract(leaves.counts().pending, 1);
  if (leaves.keeps_order()) mass = leaves.begin_order(held, slot, priority, mass);
  leaves.set_mass(held, slot, mass);
  RELIVE_FAIL_POINT(publish_leaf);
  leaves.set_state(slot, 0);
  if (leaves.is_timed()) leaves.end_due(held, Due::kWait, slot);
  count_published(held, index, 1);
}

void Leaves::count_published(Held& held, uint32_t index, int64_t count) {
  IndexState& counts = held.region.header->index_state[index];
  held.add(counts.inserted, count);
  held.add(counts.live_items, count);
  if (held.region.max_times(index) != 0) held.add(counts.unused, count);
}

void Leaves::count_first_use(Held& held, int64_t change) const {
  held.add(counts().used, change);
  held.subtract(counts().unused, change);
}

bool Leaves::use(Held& held, uint32_t index, uint64_t slot) {
  const Leaves leaves(held.region, index);
  const auto times = static_cast<uint16_t>(leaves.states()[slot].load(kRelaxed) + 1);
  leaves.set_state(slot, times);
  RELIVE_FAIL_POINT(claim_times);
  // Behind the state: a death in between leaves one too few, and so a budget of one too many, never one that is used up
  // by what is gone (rule P2).
  if (times == 1) leaves.count_first_use(held, 1);
  if (leaves.is_drawable(times)) return false;
  leaves.clear_mass(held, slot);
  RELIVE_FAIL_POINT(claim_leaf);
  if (leaves.is_bounded()) leaves.clear_order(held, slot);
  if (leaves.has_turns()) leaves.set_turn(held, slot, leaves.used_up_turn());
  held.subtract(leaves.counts().live_items, 1);
  return true;
}

bool Leaves::give_back(Held& held, uint32_t index, uint64_t slot, double mass, double order) {
  const Leaves leaves(held.region, index);
  const uint16_t times = leaves.states()[slot].load(kRelaxed);
  if (times == 0 || times > kMostUses) return false;  // deleted or ended meanwhile
  const bool was_used_up = !leaves.is_drawable(times);
  if (was_used_up && leaves.is_bounded()) leaves.set_order(held, slot, order);
  if (was_used_up && leaves.has_turns()) leaves.set_turn(held, slot, leaves.no_turn());
  if (was_used_up) leaves.set_mass(held, slot, leaves.mass_now(slot, mass));
  RELIVE_FAIL_POINT(claim_back);
  if (times == 1) leaves.count_first_use(held, -1);  // before the state, for the same reason
  leaves.set_state(slot, static_cast<uint16_t>(times - 1));
  if (was_used_up) held.add(leaves.counts().live_items, 1);
  return was_used_up;
}

// Tickets only rise; one that is lost with a death is nobody's.
Standing Leaves::next_standing(float priority) const {
  const uint64_t ticket = counts().tickets.load(kRelaxed) + 1;
  counts().tickets.store(ticket, kRelaxed);
  return {priority, ticket, r_.geometry->seed};
}

double Leaves::begin_order(Held& held, uint64_t slot, float given, double mass) const {
  const IndexConfig& config = this->config();
  if (has(kIsAged) && RELIVE_RULE(Z1_version)) {
    set_due(held, Due::kAge, slot, oldest_version(r_, index_, slot));
    RELIVE_FAIL_POINT(version_noted);
  }
  if (has(kFades)) {
    const uint64_t version = oldest_version(r_, index_, slot), base = counts().base.load(kRelaxed) >> 1;
    if (version > base && static_cast<double>(version - base) * log2_a_version(config) > kFarthest &&
        RELIVE_RULE(Z3_base)) {
      counts().base.store(version << 1 | 1, std::memory_order_release);
      move_base(held, index_);
    }
    mass = fresh_mass(slot);
  }
  if (!has(kIsBounded | kIsOrdered | kIsLatest)) return mass;
  float priority = given;
  if (std::isnan(given))
    priority = config.initial == Initial::kMax ? static_cast<float>(counts().max_priority.load(kRelaxed))
                                               : static_cast<float>(config.initial_number);
  const Standing standing = next_standing(priority);
  if (is_bounded() && RELIVE_RULE(R1_order)) set_order(held, slot, removal_leaf(config, standing));
  if (has_turns()) set_turn(held, slot, no_turn());
  RELIVE_FAIL_POINT(order_ticket);
  if (has(kIsLatest)) {
    set_due(held, Due::kPlace, slot, static_cast<double>(counts().arrivals()));
    RELIVE_FAIL_POINT(latest_noted);
  }
  return has(kIsOrdered) ? sampling_leaf(config, standing) : mass;
}

// Only where priorities count does an update change an item's place, and there it is the latest of its priority.
double Leaves::renew_order(Held& held, uint64_t slot, float priority, double mass) const {
  const IndexConfig& config = this->config();
  const bool is_removed_by_it = is_bounded() && kind_of(config.removal).has_priorities && RELIVE_RULE(R3_update);
  const bool is_drawn_by_it = has(kIsOrdered) && kind().has_priorities;
  if (!is_removed_by_it && !is_drawn_by_it) return has(kIsOrdered) ? tree().leaf(slot) : mass_now(slot, mass);
  const Standing standing = next_standing(priority);
  if (has(kIsLatest)) counts().tickets_renewed().fetch_add(1, kRelaxed);
  if (is_removed_by_it) {
    set_order(held, slot, removal_leaf(config, standing));
    RELIVE_FAIL_POINT(order_renewed);
  }
  if (is_drawn_by_it) return sampling_leaf(config, standing);
  return has(kIsOrdered) ? tree().leaf(slot) : mass_now(slot, mass);
}

double Leaves::fresh_mass(uint64_t slot) const {
  return has(kIsLatest) ? latest_mass(slot) : faded_mass(oldest_version(r_, index_, slot));
}

double Leaves::faded_mass(uint32_t version) const {
  const auto base = static_cast<double>(counts().base.load(kRelaxed) >> 1);
  const double power = (version - base) * log2_a_version(config());
  return std::exp2(std::clamp(power, kLeastPower, kMostPower));
}

// Newcomers move it up; it is moved down where the learner's version is set back.
bool Leaves::is_base_far() const {
  const double now = r_.header->policy_version.load(kRelaxed);
  return (static_cast<double>(counts().base.load(kRelaxed) >> 1) - now) * log2_a_version(config()) > kFarthest;
}

void Leaves::move_base(Held& held, uint32_t index) {
  const Leaves leaves(held.region, index);
  std::atomic<uint64_t>& base = leaves.counts().base;
  if ((base.load(kRelaxed) & 1) == 0)  // else a newcomer's version stands there
    base.store(uint64_t{held.region.header->policy_version.load(kRelaxed)} << 1 | 1, std::memory_order_release);
  release_fence();
  RELIVE_FAIL_POINT(base_begun);
  Tree& tree = held.region.trees_[index];
  for (uint64_t slot = 0; slot < tree.num_leaves(); ++slot)
    if (tree.leaf(slot) != leaves.nothing()) {
      tree.set_leaf(slot, leaves.fresh_mass(slot));
      RELIVE_FAIL_POINT(base_leaf);
    }
  rebuild(held, index);
}

uint64_t Leaves::next_to_go(Held& held, uint32_t index) {
  flush(held, index);
  const Leaves leaves(held.region, index);
  const Tree& orders = leaves.orders();
  if (kind_of(leaves.config().removal).choice == Choice::kBest) return orders.best();
  constexpr uint64_t kRemovals = ~uint64_t{1};  // a stream of random numbers that is no participant's
  const CounterRng rng(held.region.geometry->seed, kRemovals, index, leaves.counts().tickets.load(kRelaxed));
  const double point = rng.uniform(static_cast<uint64_t>(leaves.num_live())) * orders.total();
  uint64_t slot = kNoLeaf;
  orders.draw(&point, 1, &slot);
  constexpr double kFirst = 0.0;
  if (slot == kNoLeaf) orders.draw(&kFirst, 1, &slot);  // rounding led past the end
  return slot;
}

uint64_t Leaves::free_record(Held& held, uint32_t index) {
  flush(held, index);
  const Tree& turns = held.region.turns_[index];
  return turns.total() == kFreeTurn ? turns.best() : kNoLeaf;
}

uint64_t Leaves::next_record_to_go(Held& held, uint32_t index) {
  flush(held, index);
  const Leaves leaves(held.region, index);
  const uint64_t first = leaves.turns().best();
  const auto num_taken = static_cast<double>(leaves.counts().next_item.load(kRelaxed));
  const bool is_due = leaves.turns().total() + static_cast<double>(leaves.config().max_items) <= num_taken;
  if (first != kNoLeaf && is_due) return first;
  const uint64_t chosen = next_to_go(held, index);
  return chosen != kNoLeaf ? chosen : first;
}

bool Leaves::is_turn(double turn, uint64_t record, bool is_used) const {
  if (!is_used) return turn == (is_free(record) ? kFreeTurn : no_turn());
  const uint16_t state = this->state(record);
  if (is_drawable(state)) return turn == no_turn();
  return state <= kMostUses ? turn > kUsedUp && turn < 0.0 : turn > 0.0 && turn != no_turn();
}

// What is new here may be what was begun and died.
void Leaves::settle_turn(Held& held, uint64_t record, bool is_used) const {
  if (is_turn(turns().leaf(record), record, is_used)) return;
  double turn = no_turn();
  if (!is_used) {
    turn = is_free(record) ? kFreeTurn : no_turn();
  } else if (!is_drawable(state(record))) {
    turn = state(record) <= kMostUses ? used_up_turn() : static_cast<double>(counts().next_item.load(kRelaxed) + 1);
  }
  set_turn(held, record, turn);
}

const char* Leaves::wrong_turn(uint64_t record, bool is_used) const {
  if (!has_turns() || is_turn(turns().leaf(record), record, is_used)) return nullptr;
  return "a record has not the turn of what it holds";
}

void Leaves::flush(Held& held, uint32_t index) {
  Dirty& dirty = held.dirty;
  const size_t count = dirty.count_[index];
  const Leaves leaves(held.region, index);
  const auto refresh_copy = [&](Tree& tree) {
    std::array<uint64_t, Dirty::kRoom> slots;  // a refresh leaves rubbish in them
    std::copy_n(dirty.slots_[index].data(), count, slots.data());
    tree.refresh(slots.data(), count);
  };
  if (leaves.is_bounded()) refresh_copy(held.region.orders_[index]);
  if (leaves.has_turns()) refresh_copy(held.region.turns_[index]);
  if (leaves.is_ranked() && RELIVE_RULE(U1_follow))
    held.region.ranks_[index].follow(leaves.tree(), dirty.slots_[index].data(), count);
  if (leaves.has(kHasDues))
    for (const Due due : kDues)
      if (leaves.has(trait_of(due))) refresh_copy(held.region.dues_[static_cast<uint32_t>(due)][index]);
  held.region.trees_[index].refresh(dirty.slots_[index].data(), count);
  dirty.count_[index] = 0;
}

void Leaves::flush_all(Held& held) {
  for (uint32_t i = 0; i < held.region.num_indexes; ++i)
    if (held.dirty.count_[i] > 0) flush(held, i);
}

void Leaves::rebuild(Held& held, uint32_t index) {
  held.dirty.count_[index] = 0;
  held.region.trees_[index].rebuild();
  const Leaves leaves(held.region, index);
  if (leaves.is_bounded()) held.region.orders_[index].rebuild();
  if (leaves.has_turns()) held.region.turns_[index].rebuild();
  if (leaves.is_ranked() && RELIVE_RULE(U3_rebuild)) held.region.ranks_[index].rebuild(leaves.tree());
  for (const Due due : kDues)
    if (leaves.has(trait_of(due))) held.region.dues_[static_cast<uint32_t>(due)][index].rebuild();
  if (leaves.has(kFades)) {
    std::atomic<uint64_t>& base = leaves.counts().base;
    base.store(base.load(kRelaxed) & ~uint64_t{1}, std::memory_order_release);
  }
}

bool Leaves::is_of_one_priority(uint64_t slot) const {
  if (!is_bounded() || !has_priorities() || !draws_as_it_removes(config())) return true;
  return tree().leaf(slot) == sampling_leaf_of(config(), order(slot));
}

void Leaves::store_counts(Held& held, uint32_t index, const ItemCounts& counted) {
  IndexState& counts = held.region.header->index_state[index];
  counts.live_items.store(counted.live_items, kRelaxed);
  counts.pending.store(counted.pending, kRelaxed);
  counts.unused.store(counted.unused, kRelaxed);
}

const char* Leaves::wrong_count(const ItemCounts& counted) const {
  if (counted.live_items != counts().live_items.load(kRelaxed)) return "live_items differs from the leaves";
  if (counted.pending != counts().pending.load(kRelaxed)) return "the count of pending items differs from the leaves";
  if (counted.unused != counts().unused.load(kRelaxed)) return "the count of unused items differs from the leaves";
  return nullptr;
}

const char* Leaves::wrong_freshness(uint64_t slot, bool is_there, bool is_item) const {
  if (!has(kIsAged | kIsLatest | kFades)) return nullptr;
  if (has(kIsAged) && has_due(Due::kAge, slot) != (is_there && is_published(slot)))
    return "a version is noted of what is no item, or none of what is one";
  if (has(kIsAged) && is_item && dues(Due::kAge).leaf(slot) != oldest_version(r_, index_, slot))
    return "the version that is noted of an item is not its oldest row's";
  if (has(kIsLatest) && has_due(Due::kPlace, slot) && !(is_there && is_published(slot)))
    return "a place among the items that came last is noted of what is no item";
  if (is_item && has(kIsLatest | kFades) && tree().leaf(slot) != fresh_mass(slot))
    return "an item's mass does not follow from its version, or from its place among those that came";
  return nullptr;
}

const char* Leaves::broken_node() const {
  if (!follows(tree(), config().reduction)) return "an inner node differs from the reduction of its children";
  if (is_bounded() && !follows(orders(), config().order)) return "a remover's inner node differs from its children's";
  if (has_turns() && !follows(turns(), Reduction::kMin)) return "an inner node of turns differs from its children's";
  for (const Due due : kDues)
    if (has(trait_of(due)) && !follows(dues(due), Reduction::kMin))
      return "an inner node of what is due first differs from its children's";
  return is_ranked() ? ranks().broken(tree()) : nullptr;
}

void note_priority(Held& held, uint32_t index, float priority) {
  IndexState& state = held.region.header->index_state[index];
  if (!(priority > state.max_priority.load(kRelaxed))) return;
  state.max_mass.store(leaf_of(held.region.header->indexes[index], priority), kRelaxed);
  state.max_priority.store(priority, kRelaxed);
}

}  // namespace relive
