// Finds the rows that a window needs: resolve() and the checks around it.
#include <algorithm>
#include <atomic>

#include "relive/read/hindsight.hpp"
#include "relive/read/records.hpp"
#include "relive/read/sequences.hpp"
#include "relive/read/window_walk.hpp"

namespace relive {
namespace {

RELIVE_ROW_COPY double load_reward(const ColumnLayout& column, RowPlace row) {
  const std::byte* from = row.base + column.offset + row.offset * column.stride;
  if (column.dtype[2] == '8') {
    double value;
    copy_bytes(reinterpret_cast<std::byte*>(&value), from, sizeof value);
    return value;
  }
  float value;
  copy_bytes(reinterpret_cast<std::byte*>(&value), from, sizeof value);
  return value;
}

// Walks the window's steps up to n or to the end of the episode, and adds up the return. An end is a mark in a row or a
// tail. A missing row is never an end: the window is no longer whole.
bool walk(const Region& r, const IndexConfig& config, bool needs_end, Window& w, Runs* runs) {
  const Geometry& g = *r.geometry;
  const ColumnLayout* reward = g.reward_column >= 0 && config.n_step > 1 && r.columns[g.reward_column].num_dims == 0
                                   ? &r.columns[g.reward_column]
                                   : nullptr;
  const bool has_state = g.has_state != 0;
  double sum = 0.0, product = 1.0;
  uint32_t m = 0;
  uint8_t ends = 0;
  Walk steps(r, w, runs);
  while (true) {
    if (m > 0 && !steps.is_there()) {
      if (RELIVE_RULE(W1_whole)) return false;
      break;
    }
    if (m > 0 && steps.is_tail()) {
      ends = 2;
      break;
    }
    const uint32_t head = load_head(steps.at.base + steps.row * g.record_stride);
    if (m == 0) w.episode_step = head & kStepMask;
    if (reward != nullptr) sum += product * load_reward(*reward, {steps.at.base, steps.row});
    product *= config.gamma * r.discount_of(r.slot_of(steps.at.page, steps.row), head);
    ++m;
    ends = static_cast<uint8_t>((head & kTerminatedBit ? 1 : 0) | (head & kTruncatedBit ? 2 : 0));
    const bool is_last = ends != 0 || m == config.n_step;
    if (is_last && !has_state) break;
    if (!steps.advance()) {  // the bootstrap row, or the next step
      if (has_state || RELIVE_RULE(W1_whole)) return false;
      break;
    }
    if (!is_last) continue;
    if (needs_end && ends == 0 && steps.is_there() && steps.is_tail()) ends = 2;
    break;
  }
  w.num_steps = m;
  w.reward = sum;
  w.discount = product;
  w.ends = ends;
  return true;
}

bool resolve_one(const Region& r, const GatherPlan& plan, Window& w, Runs* runs) {
  const uint32_t offset = r.offset_of(w.slot);
  if (plan.needs_walk || plan.needs_end) {
    if (!walk(r, config_of(r, plan), plan.needs_end, w, runs)) return false;
  } else {
    if (r.geometry->has_state != 0 && offset + 1 >= r.page_len && !add_next(r, w, runs)) return false;
    w.episode_step = load_head(w.base + offset * r.geometry->record_stride) & kStepMask;
  }
  return plan.before == 0 || add_before(r, w, std::min(plan.before, w.episode_step), runs);
}

// Prefetches the first rows of the next page for a window that runs over the end of its page. Without this, a batch
// waits for memory three times for each of the few such windows. Nothing here is trusted; resolve() reads again.
void ask_for_next(const Region& r, uint64_t page) {
  const uint64_t next = r.ref_page(r.pages[page].next.load(std::memory_order_relaxed));
  if (next >= r.geometry->num_pages) return;
  const std::byte* base = r.page_base(next);
  __builtin_prefetch(base);
  __builtin_prefetch(base + r.geometry->record_stride);
}

}  // namespace

void locate(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count) {
  if (plan.max_rows != 0) return locate_records(r, plan, windows, which, count);
  const Geometry& g = *r.geometry;
  const std::byte* const slabs = r.base + g.slabs_offset;
  const uint64_t stride = g.record_stride, frame_bytes = g.frame_bytes, slab_bytes = g.slab_bytes;
  const uint32_t shift = g.frames_per_slab_shift, mask = (1u << shift) - 1;
  const uint32_t span = plan.record_span;
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    if (!w.ok) continue;
    const uint32_t frame = r.frames[r.page_of(w.slot)].load(std::memory_order_acquire);
    w.base = slabs + (frame >> shift) * slab_bytes + (frame & mask) * frame_bytes;
    const uint32_t offset = r.offset_of(w.slot);
    if (offset + plan.after >= r.page_len) ask_for_next(r, r.page_of(w.slot));
    const std::byte* record = w.base + offset * stride;
    const std::byte* const end = record + span;
    for (record -= reinterpret_cast<uintptr_t>(record) & 63; record < end; record += 64) __builtin_prefetch(record);
  }
}

void resolve(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
             Runs* runs) {
  if (plan.max_rows != 0) return resolve_records(r, plan, windows, which, count, runs);
  if (plan.num_rows != 0) return resolve_sequences(r, plan, windows, which, count, runs);
  if (plan.has_goals) return resolve_with_goals(r, plan, windows, which, count, runs);
  if (!plan.needs_walk && !plan.needs_end && plan.before == 0) {  // a row and the next one
    const uint32_t in_page = r.page_len - 1, last = r.geometry->has_state != 0 ? in_page : r.page_len;
    for (size_t k = 0; k < count; ++k) {
      Window& w = windows[which[k]];
      w.pages_after = w.pages_before = 0;
      w.num_steps = 1;
      if ((static_cast<uint32_t>(w.slot) & in_page) < last || !w.ok) continue;
      w.first_run = static_cast<uint32_t>(runs->size());
      w.ok = add_next(r, w, runs);
    }
    return;
  }
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    begin_window(w, *runs);
    if (w.ok) w.ok = resolve_one(r, plan, w, runs);
  }
}

void recheck(const Region& r, const GatherPlan& plan, Window* windows, const Runs& runs, const uint32_t* which,
             size_t count) {
  if (!RELIVE_RULE(G4_recheck)) return;
  const ItemMap map = r.map(plan.index);
  const bool asks_item = !map.is_explicit || RELIVE_RULE(X5_recheck);
  const auto is_same = [&r](uint64_t page, uint64_t word) {
    return r.words[page].load(std::memory_order_acquire) >> kStateBits == word >> kStateBits;
  };
  if (asks_item && runs.empty()) {  // most batches of transitions: no window left its page
    for (size_t k = 0; k < count; ++k) {
      Window& w = windows[which[k]];
      w.ok = w.ok && map.word(w.slot) >> kStateBits == w.word >> kStateBits;
    }
    return;
  }
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    if (!w.ok) continue;
    w.ok = !asks_item || map.word(w.slot) >> kStateBits == w.word >> kStateBits;
    const uint32_t num_runs = uint32_t{w.pages_after} + w.pages_before;
    if (num_runs == 0) continue;
    const Run* const mine = runs.data() + w.first_run;
    for (uint32_t run = 0; w.ok && run < num_runs; ++run) w.ok = is_same(mine[run].page, mine[run].word);
  }
}

}  // namespace relive
