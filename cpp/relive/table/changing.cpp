#include "relive/table/changing.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "relive/index/leaves.hpp"
#include "relive/pages/changed_rows.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/publish.hpp"
#include "relive/table/by_key.hpp"
#include "relive/table/waiting.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kChunk = 256;  // leaves changed in one critical section (rule C3)

// The state of an item. kUsedUp: used up or dropped; its step is there.
enum class Found : uint32_t { kGone, kPending, kAwaiting, kUsedUp, kLive };

struct UpdateScratch {
  std::vector<double> masses;
  std::vector<Found> early;  // for the mutant H1_check_in_lock only
};

// The state of a key's item now, in one index. Exact under the lock.
Found find_item(const Region& r, uint32_t index, int64_t key) {
  const ItemMap& map = r.map(index);
  const uint64_t leaf = r.leaf_of_key(index, key);
  if (map.word_of(leaf, r.key_generation(key)) == 0) return Found::kGone;
  const Leaves leaves(r, index);
  const uint16_t state = leaves.state(leaf);
  if (state == kStateUnfilled) return Found::kPending;
  if (state == kStatePending) {  // or the row is not written yet, or is a tail
    const bool is_step = !map.is_explicit && r.is_step(r.page_of(leaf), r.offset_of(leaf));
    return is_step ? Found::kPending : Found::kGone;
  }
  if (state == kStateAwaiting) return Found::kAwaiting;
  if (state == kStateRemoved || (RELIVE_RULE(H1_state) && state == kStateEnded)) return Found::kGone;
  return leaves.is_drawable(state) || !RELIVE_RULE(H1_times) ? Found::kLive : Found::kUsedUp;
}

// The facts that all priorities of a call share, looked up once.
struct Update {
  const ItemMap& map;
  const Leaves& leaves;
  const uint32_t index;
  const bool keeps_order;
  UpdateScratch* const scratch;
};

// One priority whose item has no leaf above 0, under the lock. True: the item was still there. It is not inlined, and
// the usual case is: in the loop over a call's priorities the usual case then has the registers for itself.
[[gnu::noinline]] bool update_massless(Held& held, const Update& update, int64_t key, uint64_t slot, float priority,
                                       double mass) {
  Region& r = held.region;
  const ItemMap& map = update.map;
  const Leaves& leaves = update.leaves;
  const uint32_t index = update.index;
  Found found;
  if (RELIVE_RULE(H1_check_in_lock)) {
    found = find_item(r, index, key);
  } else {
    found = update.scratch->early.back();
    update.scratch->early.pop_back();
  }
  if (found == Found::kGone || found == Found::kUsedUp) return false;
  if (found == Found::kPending) {
    const uint32_t bits = std::bit_cast<uint32_t>(priority);
    if (map.is_explicit) {
      r.records[index].windows_of(slot)->pending_priority.store(bits, kRelaxed);
    } else {
      change_rows(held, r.page_of(slot), [&] { r.given(index, slot).store(bits, kRelaxed); });
    }
    return true;
  }
  if (found == Found::kAwaiting) {
    Leaves::publish(held, index, slot, priority, mass);
    return true;
  }
  leaves.revalue_as(held, slot, priority, mass, update.keeps_order);
  RELIVE_FAIL_POINT(update_leaf);
  return true;
}

// One priority, under the lock. True: the item was still there.
[[gnu::always_inline]] inline bool update_one(Held& held, const Update& update, int64_t key, float priority,
                                              double mass) {
  Region& r = held.region;
  const ItemMap& map = update.map;
  const Leaves& leaves = update.leaves;
  const uint64_t slot = r.key_slot(key) - map.first;
  // Under the lock a leaf above 0 is a live item: the critical section that ends an item clears its leaf, or recovery
  // does. So the usual case needs the page word and the leaf, but no range, no tail and no state.
  if (RELIVE_RULE(H1_check_in_lock) && leaves.has_mass(slot)) {
    if (map.word_of(slot, r.key_generation(key)) == 0) return false;
    leaves.revalue_massive(held, slot, priority, mass, update.keeps_order);
    RELIVE_FAIL_POINT(update_leaf);
    return true;
  }
  return update_massless(held, update, key, slot, priority, mass);
}

// One explicit item by its key, under the lock. False: it is gone.
bool delete_record(Held& held, int64_t key) {
  const Region& r = held.region;
  for (const uint32_t i : r.record_indexes()) {
    if (!r.is_item_key(i, key) || find_item(r, i, key) == Found::kGone) continue;
    end_record(held, i, r.leaf_of_key(i, key), kStateRemoved);
    return true;
  }
  return false;
}

// One row's key, removed from every index of rows, under the lock. True: an index had a step of that key.
bool delete_one(Held& held, int64_t key) {
  Region& r = held.region;
  bool found_any = false, was_removed = false;  // a death in this function leaves it removed in some indexes
  const uint64_t slot = r.key_slot(key);
  const uint64_t page = r.page_of(slot);
  for (const uint32_t i : r.row_indexes()) {
    if (find_item(r, i, key) == Found::kGone) {
      was_removed |= Leaves(r, i).state(slot) == kStateRemoved;
      continue;
    }
    found_any = true;
    if (Leaves::retire(held, i, slot, kStateRemoved)) r.pages[page].live -= 1;
    RELIVE_FAIL_POINT(delete_one);
  }
  if (!found_any) return false;
  if (!was_removed) held.add(r.header->removed_steps, 1);
  note_loss(held, page);
  RELIVE_FAIL_POINT(delete_done);
  free_if_lifeless(held, page);
  return true;
}

}  // namespace

Status update_priorities(Table& table, uint32_t index, const int64_t* keys, const float* priorities, size_t count,
                         int64_t* applied) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Region& r = table.region();
  const IndexConfig& config = r.header->indexes[index];
  *applied = 0;
  const Leaves leaves(r, index);
  const ItemMap map = r.map(index);
  if (!leaves.has_priorities()) return Status(Code::kNoPriorities).with_text("index", config.name);
  RELIVE_RETURN_IF_ERROR(check_keys(table.region(), index, keys, count));
  thread_local UpdateScratch scratch_of_thread;
  UpdateScratch& scratch = scratch_of_thread;
  std::vector<double>& masses = scratch.masses;
  masses.resize(count);
  float largest = 0.0f;
  for (size_t i = 0; i < count; ++i) {
    if (!(priorities[i] >= 0.0f) || !std::isfinite(priorities[i]))
      return Status(Code::kInvalidPriority)
          .with_int("position", static_cast<int64_t>(i))
          .with_double("value", priorities[i]);
    largest = std::max(largest, priorities[i]);
    const uint64_t leaf = r.key_slot(keys[i]) - map.first;
    leaves.prefetch(leaf);
    map.prefetch(leaf);
  }
  const double* const mass_of = masses.data();  // naming a thread's scratch costs a call each time
  double exponent = exponent_of(config);
  if (leaves.kind().masses_of != nullptr) leaves.kind().masses_of(exponent, priorities, count, masses.data());
  const Update update{map, leaves, index, leaves.keeps_order(), &scratch};
  const Deadline deadline = table.own_deadline();
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t end = std::min(count, begin + kChunk);
    if (!RELIVE_RULE(H1_check_in_lock)) {
      scratch.early.clear();
      for (size_t i = end; i-- > begin;) scratch.early.push_back(find_item(r, index, keys[i]));
    }
    Locked locked(table.door(), deadline);
    locked.drop_all_overdue();
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (exponent != exponent_of(config) && has_exponent(config) && RELIVE_RULE(H4_update)) {  // it has changed
      exponent = exponent_of(config);
      leaves.kind().masses_of(exponent, priorities + begin, count - begin, masses.data() + begin);
    }
    note_priority(locked.held(), index, largest);
    int64_t there = 0;
    const int64_t massless = r.header->index_state[index].massless.load(kRelaxed);
    for (size_t i = begin; i < end; ++i)
      there += update_one(locked.held(), update, keys[i], priorities[i], mass_of[i]) ? 1 : 0;
    *applied += there;
    RELIVE_FAIL_POINT(update_ancestors);
    locked.items_came();
    if (massless != r.header->index_state[index].massless.load(kRelaxed)) locked.room_came();
  }
  r.header->counters.updates_applied.fetch_add(static_cast<uint64_t>(*applied), kRelaxed);
  r.header->counters.updates_stale.fetch_add(count - static_cast<uint64_t>(*applied), kRelaxed);
  return {};
}

Status delete_items(Table& table, const int64_t* keys, size_t count, int64_t* deleted) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = table.region();
  for (size_t i = 0; i < count; ++i)
    if (!r.is_own_key(keys[i]))
      return Status(Code::kForeignKey).with_int("position", static_cast<int64_t>(i)).with_int("key", keys[i]);
  const Deadline deadline = table.own_deadline();
  *deleted = 0;
  for (size_t begin = 0; begin < count; begin += kChunk) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t i = begin; i < std::min(count, begin + kChunk); ++i)
      *deleted += (r.is_row_key(keys[i]) ? delete_one : delete_record)(locked.held(), keys[i]) ? 1 : 0;
    locked.room_came();
  }
  table.region().header->counters.deleted.fetch_add(static_cast<uint64_t>(*deleted), kRelaxed);
  return {};
}

Status clear(Table& table) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Deadline deadline = table.own_deadline();
  uint64_t left = table.region().header->live_steps.load(kRelaxed);
  while (left > 0) {
    Locked locked(table.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    const uint64_t before = table.region().header->live_steps.load(kRelaxed);
    const uint64_t chunk = std::min<uint64_t>(left, kChunk);
    const bool is_done = evict_steps(locked.held(), chunk);
    const uint64_t live = table.region().header->live_steps.load(kRelaxed);
    left = std::min(left - (is_done ? chunk : std::min(chunk, before - live)), live);
    locked.room_came();
    locked.release();
    if (!is_done && deadline.passed()) return items_stand_error(deadline);
  }
  return {};
}

Status take_lock(Table& table, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Locked locked(table.door(), deadline);
  const Status first = locked.status();
  if (locked.status().ok()) locked.drop_all_overdue();  // which takes the lock again, as often as it is free in time
  return first;
}

}  // namespace relive
