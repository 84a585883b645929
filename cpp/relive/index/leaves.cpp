#include "relive/index/leaves.hpp"

#include "relive/index/fresh_masses.hpp"
#include "relive/index/record_queue.hpp"
#include "relive/index/versions.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void Leaves::open(Held& held, uint32_t index, uint64_t first_slot, uint32_t count, uint32_t num_ended) {
  const Leaves leaves(held.region, index);
  std::atomic<uint16_t>* const states = leaves.states() + first_slot;  // others may be reading
  for (uint32_t k = 0; k < count; ++k) states[k].store(k < num_ended ? kStateEnded : kStatePending, kRelaxed);
}

void Leaves::await_priority(Held& held, uint64_t slot) const {
  DueTimes::begin_wait(held, index_, slot);
  set_state(slot, kStateAwaiting);
  held.add(counts().pending, 1);
}

bool Leaves::complete(Held& held, uint32_t index, uint64_t record, float given) {
  return Leaves(held.region, index).enter(held, record, given);
}

bool Leaves::fill(Held& held, uint32_t index, uint64_t slot) {
  held.subtract(held.region.header->index_state[index].pending, 1);
  return Leaves(held.region, index).complete(held, slot);
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
  if (!is_mass(mass)) leaves.note_mass(held, 0, true, false);
  if (leaves.is_timed()) DueTimes(leaves).end(held, Due::kWait, slot);
  count_published(held, index, 1);
}

void Leaves::count_published(Held& held, uint32_t index, int64_t count) {
  IndexState& counts = held.region.header->index_state[index];
  held.add(counts.inserted, count);
  held.add(counts.live_items, count);
  if (held.region.max_times(index) != 0) held.add(counts.unused, count);
}

void Leaves::count_first_use(Held& held, int64_t change, bool has_mass) const {
  held.add(counts().used, change);
  if (has_mass || !RELIVE_RULE(P4_massless)) held.subtract(counts().unused, change);
}

bool Leaves::use(Held& held, uint32_t index, uint64_t slot) {
  const Leaves leaves(held.region, index);
  const bool had_mass = leaves.has_mass(slot);  // the caller's own sampler may choose any item
  const auto times = static_cast<uint16_t>(leaves.states()[slot].load(kRelaxed) + 1);
  leaves.set_state(slot, times);
  RELIVE_FAIL_POINT(claim_times);
  // The count follows the state. If the process dies in between, the count is one too low and a budget one too large: a
  // budget is never used up by items that are gone (rule P2).
  if (times == 1) leaves.count_first_use(held, 1, had_mass);
  if (leaves.is_drawable(times)) return false;
  leaves.clear_mass(held, slot);
  RELIVE_FAIL_POINT(claim_leaf);
  if (leaves.is_bounded()) Bounds(leaves).clear_order(held, slot);
  if (leaves.has_queue()) RecordQueue(leaves).note_used_up(held, slot);
  leaves.note_mass(held, times, had_mass, true);
  held.subtract(leaves.counts().live_items, 1);
  return true;
}

bool Leaves::give_back(Held& held, uint32_t index, uint64_t slot, double mass, double order) {
  const Leaves leaves(held.region, index);
  const uint16_t times = leaves.states()[slot].load(kRelaxed);
  if (times == 0 || times > kMostUses) return false;  // the item was deleted, or ended, since it was drawn
  const bool was_used_up = !leaves.is_drawable(times);
  if (was_used_up && leaves.is_bounded()) leaves.set_order(held, slot, order);
  if (was_used_up && leaves.has_queue()) RecordQueue(leaves).leave(held, slot);
  if (was_used_up) leaves.set_mass(held, slot, FreshMasses(leaves).of_or(slot, mass));
  RELIVE_FAIL_POINT(claim_back);
  const bool has_mass = leaves.has_mass(slot);
  if (times == 1) leaves.count_first_use(held, -1, has_mass);  // before the state, for the same reason
  leaves.set_state(slot, static_cast<uint16_t>(times - 1));
  if (was_used_up) {
    held.add(leaves.counts().live_items, 1);
    leaves.note_mass(held, times, true, has_mass);
  }
  return was_used_up;
}

double Leaves::begin_order(Held& held, uint64_t slot, float given, double mass) const {
  const IndexConfig& config = this->config();
  if (keeps(kIsAged) && RELIVE_RULE(Z1_version)) {
    set_due(held, Due::kAge, slot, oldest_version(r_, index_, slot));
    RELIVE_FAIL_POINT(version_noted);
  }
  if (keeps(kFades)) {
    const uint32_t version = oldest_version(r_, index_, slot);
    const FreshMasses masses(*this);
    masses.follow(held, version);
    mass = masses.of_version(version);
  }
  if (!keeps(kIsBounded | kIsOrdered | kIsLatest)) return mass;
  float priority = given;
  if (std::isnan(given))
    priority = config.initial == Initial::kMax ? static_cast<float>(counts().max_priority.load(kRelaxed))
                                               : static_cast<float>(config.initial_number);
  const Standing standing = next_standing(priority);
  if (is_bounded() && RELIVE_RULE(R1_order)) set_order(held, slot, removal_leaf(config, standing));
  if (has_queue()) RecordQueue(*this).leave(held, slot);
  RELIVE_FAIL_POINT(order_ticket);
  if (keeps(kIsLatest)) {
    set_due(held, Due::kPlace, slot, static_cast<double>(counts().arrivals()));
    RELIVE_FAIL_POINT(latest_noted);
  }
  return keeps(kIsOrdered) ? sampling_leaf(config, standing) : mass;
}

// An update changes the place of an item only where priorities count, and there the item is the latest of its priority.
double Leaves::renew_order(Held& held, uint64_t slot, float priority, double mass) const {
  const IndexConfig& config = this->config();
  const FreshMasses masses(*this);
  const bool is_removed_by_it = is_bounded() && kind_of(config.removal).has_priorities && RELIVE_RULE(R3_update);
  const bool is_drawn_by_it = keeps(kIsOrdered) && kind().has_priorities;
  if (!is_removed_by_it && !is_drawn_by_it) return keeps(kIsOrdered) ? tree().leaf(slot) : masses.of_or(slot, mass);
  const Standing standing = next_standing(priority);
  if (keeps(kIsLatest)) counts().tickets_renewed().fetch_add(1, kRelaxed);
  if (is_removed_by_it) {
    set_order(held, slot, removal_leaf(config, standing));
    RELIVE_FAIL_POINT(order_renewed);
  }
  if (is_drawn_by_it) return sampling_leaf(config, standing);
  return keeps(kIsOrdered) ? tree().leaf(slot) : masses.of_or(slot, mass);
}

void note_priority(Held& held, uint32_t index, float priority) {
  IndexState& state = held.region.header->index_state[index];
  if (!(priority > state.max_priority.load(kRelaxed))) return;
  state.max_mass.store(leaf_of(held.region.header->indexes[index], priority), kRelaxed);
  state.max_priority.store(priority, kRelaxed);
}

}  // namespace relive
