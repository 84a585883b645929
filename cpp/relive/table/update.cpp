// What reaches an item by its key: gather, update_priorities, delete, clear; and what a handle can say of its table.
#include <algorithm>
#include <cmath>
#include <vector>

#include "relive/index/leaves.hpp"
#include "relive/pages/hold.hpp"
#include "relive/pages/publish.hpp"
#include "relive/table/table.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kChunk = 256;  // leaves a hold (rule C3)
constexpr size_t kGatherBlock = 32;
constexpr uint32_t kGatherRounds = 16;
constexpr uint32_t kReadOnlyRounds = 4096;  // it cannot take the lock; each failed round is somebody else's progress

enum class Found : uint32_t { kGone, kPending, kAwaiting, kUsedUp, kLive };

struct GatherScratch {
  std::vector<Window> windows;
  Runs runs;
  std::vector<uint32_t> which;
  std::vector<double> masses;
  std::vector<Found> early;  // mutant H1_check_in_lock only
};

GatherScratch& scratch() {
  thread_local GatherScratch mine;
  return mine;
}

// What a key stands for now, in one index. Exact under the lock.
Found find_item(const Region& r, uint32_t index, int64_t key) {
  const ItemMap& map = r.map(index);
  const uint64_t slot = r.leaf_of_key(index, key);
  const uint64_t word = map.word(slot);
  if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return Found::kGone;
  const Leaves leaves(r, index);
  const uint16_t state = leaves.state(slot);
  if (state == kStatePending) {  // of a row that is not written yet, or a tail's
    if (map.is_explicit) return Found::kGone;
    const uint64_t page = r.page_of(slot);
    const uint32_t offset = r.offset_of(slot);
    const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
    const bool is_step = offset >= range.step_begin && offset < range.step_end && !r.is_tail(page, offset);
    return is_step ? Found::kPending : Found::kGone;
  }
  if (state == kStateAwaiting) return Found::kAwaiting;
  if (state == kStateRemoved || (RELIVE_RULE(H1_state) && state == kStateEnded)) return Found::kGone;
  return leaves.is_drawable(state) || !RELIVE_RULE(H1_times) ? Found::kLive : Found::kUsedUp;
}

// One attempt at the keys of which[0 .. left). Returns how many changed while they were read, now at the front of which.
size_t gather_round(const Region& r, const GatherPlan& plan, const int64_t* keys, Window* windows, Runs* runs,
                    uint32_t* which, size_t left, size_t batch, std::byte* const* out, uint8_t* present) {
  const Leaves leaves(r, plan.index);
  const ItemMap map = r.map(plan.index);
  size_t tried = 0;
  runs->clear();
  for (size_t k = 0; k < left; ++k) {
    const uint32_t i = which[k];
    Window& w = windows[i];
    w.word = map.word(w.slot);
    w.ok = Region::is_used(w.word) && Region::generation_of(w.word) == r.key_generation(keys[i]) &&
           leaves.is_published(w.slot);
    if (w.ok) which[tried++] = i;
  }
  locate(r, plan, windows, which, std::min(tried, kGatherBlock));
  for (size_t begin = 0; begin < tried; begin += kGatherBlock) {
    const size_t size = std::min(kGatherBlock, tried - begin);
    const size_t after = begin + size;
    locate(r, plan, windows, which + after, std::min(kGatherBlock, tried - after));
    resolve(r, plan, windows, which + begin, size, runs);
    copy_rows(r, plan, windows, *runs, which + begin, size, batch, out);
  }
  RELIVE_FAIL_POINT(sample_gathered);
  acquire_fence();
  recheck(r, plan, windows, *runs, which, tried);
  left = 0;
  for (size_t k = 0; k < tried; ++k) {
    const uint32_t i = which[k];
    if (windows[i].ok) {
      present[i] = 1;
    } else {
      which[left++] = i;  // gone, or moved to another frame: the next round tells
    }
  }
  return left;
}

// One priority, under the lock. True where the item was still there.
bool update_one(Held& held, const ItemMap& map, uint32_t index, int64_t key, float priority, double mass) {
  Region& r = held.region;
  const Leaves leaves(r, index);
  const uint64_t slot = r.key_slot(key) - map.first;
  // Under the lock a leaf above 0 is an item that lives: whatever ends an item clears its leaf in the same hold, or
  // recovery does. So the usual case needs the page word and the leaf, no range, no tail and no state.
  if (RELIVE_RULE(H1_check_in_lock) && leaves.has_mass(slot)) {
    const uint64_t word = map.word(slot);
    if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return false;
    Leaves::revalue(held, index, slot, mass);
    RELIVE_FAIL_POINT(update_leaf);
    return true;
  }
  Found found;
  if (RELIVE_RULE(H1_check_in_lock)) {
    found = find_item(r, index, key);
  } else {
    found = scratch().early.back();
    scratch().early.pop_back();
  }
  if (found == Found::kGone || found == Found::kUsedUp) return false;
  if (found == Found::kPending) {
    r.marks[slot].pending_priority.store(std::bit_cast<uint32_t>(priority), kRelaxed);
    return true;
  }
  if (found == Found::kAwaiting) {
    Leaves::publish(held, index, slot, mass);
    return true;
  }
  Leaves::revalue(held, index, slot, mass);
  RELIVE_FAIL_POINT(update_leaf);
  return true;
}

// One explicit item by its key, under the lock. False where it is gone.
bool delete_record(Held& held, int64_t key) {
  const Region& r = held.region;
  for (const uint32_t i : r.record_indexes()) {
    if (!r.is_item_key(i, key) || find_item(r, i, key) == Found::kGone) continue;
    end_record(held, i, r.leaf_of_key(i, key), kStateRemoved);
    return true;
  }
  return false;
}

// One row's key out of every index of rows, under the lock. True where it stood for a step in any of them.
bool delete_one(Held& held, int64_t key) {
  Region& r = held.region;
  bool found_any = false, was_removed = false;  // whoever died in here left it removed in some of them
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
  if (!was_removed) r.header->removed_steps.fetch_add(1, kRelaxed);
  RELIVE_FAIL_POINT(delete_done);
  free_if_lifeless(held, page);
  return true;
}

}  // namespace

Status Table::check_keys(uint32_t index, const int64_t* keys, size_t count) const {
  for (size_t i = 0; i < count; ++i)
    if (!region_.is_item_key(index, keys[i]))
      return Status(Code::kForeignKey).with_int("position", static_cast<int64_t>(i)).with_int("key", keys[i]);
  return {};
}

Status Table::gather(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out,
                     uint8_t* present) {
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  RELIVE_RETURN_IF_ERROR(check_keys(plan.index, keys, count));
  if (plan.needs_bulk) return gather_tiered(plan, keys, count, out, present);
  const Region& r = region_;
  GatherScratch& s = scratch();
  s.windows.resize(std::max(s.windows.size(), count));
  Window* const windows = s.windows.data();
  s.which.resize(count);
  for (size_t i = 0; i < count; ++i) {
    s.which[i] = static_cast<uint32_t>(i);
    windows[i].slot = r.leaf_of_key(plan.index, keys[i]);
    windows[i].row = static_cast<uint32_t>(i);
    present[i] = 0;
  }
  size_t left = count;
  const uint32_t patience = access_ == Access::kReadOnly ? kReadOnlyRounds : RELIVE_ROUNDS(kGatherRounds);
  for (uint32_t round = 0; round < patience && left > 0; ++round)
    left = gather_round(r, plan, keys, windows, &s.runs, s.which.data(), left, count, out, present);
  if (left > 0 && access_ == Access::kReadWrite) {  // pages that move faster than they are read: hold them still
    Hold hold(door_, own_deadline());
    {
      Locked locked(door_, own_deadline());
      RELIVE_RETURN_IF_ERROR(locked.status());
      hold.begin(locked);
    }
    for (uint32_t round = 0; round < kGatherRounds && left > 0; ++round)  // the second is a recovery's doing (rule D6)
      left = gather_round(r, plan, keys, windows, &s.runs, s.which.data(), left, count, out, present);
    RELIVE_PROMISE(left == 0, "an item went while every page was held");
  }
  for (size_t i = 0; i < count; ++i)
    if (!present[i]) zero_row(plan, static_cast<uint32_t>(i), out);
  return {};
}

Status Table::update_priorities(uint32_t index, const int64_t* keys, const float* priorities, size_t count,
                                int64_t* applied) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Region& r = region_;
  const IndexConfig& config = r.header->indexes[index];
  *applied = 0;
  const Leaves leaves(r, index);
  const ItemMap map = r.map(index);
  if (!leaves.kind().has_priorities) return Status(Code::kNoPriorities).with_text("index", config.name);
  RELIVE_RETURN_IF_ERROR(check_keys(index, keys, count));
  std::vector<double>& masses = scratch().masses;
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
  leaves.kind().leaves_of(config, priorities, count, masses.data());
  const Deadline deadline = own_deadline();
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t end = std::min(count, begin + kChunk);
    if (!RELIVE_RULE(H1_check_in_lock)) {
      scratch().early.clear();
      for (size_t i = end; i-- > begin;) scratch().early.push_back(find_item(r, index, keys[i]));
    }
    Locked locked(door_, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    note_priority(locked.held(), index, largest);
    for (size_t i = begin; i < end; ++i)
      *applied += update_one(locked.held(), map, index, keys[i], priorities[i], masses[i]) ? 1 : 0;
    RELIVE_FAIL_POINT(update_ancestors);
    locked.items_came();
  }
  r.header->counters.updates_applied.fetch_add(static_cast<uint64_t>(*applied), kRelaxed);
  r.header->counters.updates_stale.fetch_add(count - static_cast<uint64_t>(*applied), kRelaxed);
  return {};
}

Status Table::delete_items(const int64_t* keys, size_t count, int64_t* deleted) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = region_;
  for (size_t i = 0; i < count; ++i)
    if (!r.is_own_key(keys[i]))
      return Status(Code::kForeignKey).with_int("position", static_cast<int64_t>(i)).with_int("key", keys[i]);
  const Deadline deadline = own_deadline();
  *deleted = 0;
  for (size_t begin = 0; begin < count; begin += kChunk) {
    Locked locked(door_, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t i = begin; i < std::min(count, begin + kChunk); ++i)
      *deleted += (r.is_row_key(keys[i]) ? delete_one : delete_record)(locked.held(), keys[i]) ? 1 : 0;
    locked.room_came();
  }
  region_.header->counters.deleted.fetch_add(static_cast<uint64_t>(*deleted), kRelaxed);
  return {};
}

Status Table::clear() {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Deadline deadline = own_deadline();
  uint64_t left = region_.header->live_steps.load(kRelaxed);
  while (left > 0) {
    Locked locked(door_, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    const uint64_t before = region_.header->live_steps.load(kRelaxed);
    const uint64_t chunk = std::min<uint64_t>(left, kChunk);
    const bool is_done = evict_steps(locked.held(), chunk);
    const uint64_t live = region_.header->live_steps.load(kRelaxed);
    left = std::min(left - (is_done ? chunk : std::min(chunk, before - live)), live);
    locked.room_came();
    if (!is_done && deadline.passed()) return items_stand_error(deadline);
  }
  return {};
}

Status Table::stats(TableStats* out) {
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = region_;
  const Header& h = *r.header;
  out->num_steps = num_steps();
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p)
    out->num_participants += r.participants[p].live.load(kRelaxed);
  for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane)
    out->num_open_lanes += r.lanes[lane].state.load(kRelaxed) == LaneState::kLive ? 1 : 0;
  out->num_free_pages = h.num_free_pages.load(kRelaxed);
  out->num_pages = r.geometry->num_pages;
  out->frames_committed = h.frames_committed.load(kRelaxed);
  out->frames_used = out->frames_committed - h.num_free_frames.load(kRelaxed);
  out->bytes_committed = r.geometry->slabs_offset + out->frames_committed * r.geometry->frame_bytes;
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const IndexState& state = h.index_state[i];
    out->live_items.push_back(state.live_items.load(kRelaxed));
    out->inserted.push_back(state.inserted.load(kRelaxed));
    out->sampled.push_back(r.sampled(i));
    int64_t in_flight = 0;
    for (uint32_t p = 0; p < r.geometry->max_participants; ++p) in_flight += r.credit(p, i).in_flight.load(kRelaxed);
    out->in_flight.push_back(in_flight);
    out->total_mass.push_back(Leaves(r, i).total());
    out->max_priority.push_back(state.max_priority.load(kRelaxed));
  }
  const Counters& c = h.counters;
  const auto add = [out](const char* name, const std::atomic<uint64_t>& value) {
    out->counters.emplace_back(name, value.load(kRelaxed));
  };
  add("appended", c.appended);
  add("evicted", c.evicted);
  add("pool_pressure", c.pool_pressure);
  add("early_freed", c.early_freed);
  add("deleted", c.deleted);
  add("cut_lanes", c.cut_lanes);
  add("skipped_items", c.skipped_items);
  add("updates_applied", c.updates_applied);
  add("updates_stale", c.updates_stale);
  add("redraws_generation", c.redraws_generation);
  add("redraws_empty", c.redraws_empty);
  add("redraws_claimed", c.redraws_claimed);
  add("slow_draws", c.slow_draws);
  add("recoveries", c.recoveries);
  add("swept", c.swept);
  add("sampler_waits", c.sampler_waits);
  add("writer_waits", c.writer_waits);
  add("sampler_wait_ns", c.sampler_wait_ns);
  add("writer_wait_ns", c.writer_wait_ns);
  return {};
}

}  // namespace relive
