// Which rows a window needs: resolve() and the checks around it.
#include <algorithm>
#include <atomic>

#include "relive/read/rows.hpp"

namespace relive {
namespace {

RELIVE_ROW_COPY double load_reward(const ColumnLayout& column, Row row) {
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

// Follows a link of the window's page; notes the neighbour's word for recheck(). False where it is gone.
bool follow(const Region& r, const std::atomic<uint64_t>& link, Touched* touched, const std::byte** base) {
  const uint64_t ref = link.load(std::memory_order_acquire);
  if (ref == 0) return false;
  const uint64_t page = r.ref_page(ref);
  if (page >= r.geometry->num_pages) return false;
  const uint64_t word = r.words[page].load(std::memory_order_acquire);
  if (!Region::is_used(word)) return false;
  if (RELIVE_RULE(A1_link_generation) && Region::generation_of(word) != r.ref_generation(ref)) return false;
  touched->page = static_cast<uint32_t>(page);
  touched->word = word;
  *base = r.page_base(page);
  return true;
}

bool need_next(const Region& r, Window& w) {
  if (w.has_next) return true;
  if (!follow(r, r.pages[r.page_of(w.slot)].next, &w.next_page, &w.next_base)) return false;
  w.has_next = true;
  return true;
}

// Whether row `offset` of the window's page or the next one holds a step of the same episode so far.
bool is_step(const Region& r, const Window& w, uint32_t offset) {
  const uint64_t page = offset < r.page_len ? r.page_of(w.slot) : w.next_page.page;
  const uint32_t row = offset & (r.page_len - 1);
  const Range range = Range::unpack(r.pages[page].range.load(std::memory_order_acquire));
  return row < range.step_end && !r.is_tail(page, row);
}

// Whether the lane of a page that has no next page is still being written: a full page is CLOSED before the next opens.
bool lane_goes_on(const Region& r, uint64_t page) {
  const Lane& lane =
      r.lanes[std::min(r.pages[page].lane_slot.load(std::memory_order_relaxed), r.geometry->max_lanes - 1)];
  return lane.state.load(std::memory_order_acquire) == LaneState::kLive &&
         lane.uid.load(std::memory_order_acquire) == r.pages[page].lane_uid.load(std::memory_order_relaxed);
}

// Walks the window's steps up to n, to the end of the episode or of the lane, and sums the return on the way.
bool walk(const Region& r, const IndexConfig& config, bool needs_end, Window& w) {
  const Geometry& g = *r.geometry;
  const uint32_t offset = r.offset_of(w.slot);
  double sum = 0.0, product = 1.0;
  uint32_t m = 0;
  uint8_t ends = 0;
  while (m < config.n_step) {
    const uint32_t at = offset + m;
    if (at >= r.page_len && !need_next(r, w)) break;
    if (m > 0 && !is_step(r, w, at)) break;
    const Row row = row_at(w, static_cast<int32_t>(at), r.page_len);
    const uint32_t head = load_head(row.base + row.offset * g.record_stride);
    if (m == 0) w.episode_step = head & kStepMask;
    if (g.reward_column >= 0 && config.n_step > 1) {
      const ColumnLayout& column = r.columns[g.reward_column];
      if (column.num_dims == 0) sum += product * load_reward(column, row);
    }
    const uint64_t page = at < r.page_len ? r.page_of(w.slot) : w.next_page.page;
    product *= config.gamma * r.discount_of(r.slot_of(page, row.offset), head);
    ++m;
    ends = static_cast<uint8_t>((head & kTerminatedBit ? 1 : 0) | (head & kTruncatedBit ? 2 : 0));
    if (ends != 0) break;
  }
  if (needs_end && ends == 0) {
    const uint32_t after = offset + m;
    const bool has_row = after < r.page_len || need_next(r, w);
    if (!has_row) {
      ends = g.has_state != 0 || lane_goes_on(r, r.page_of(w.slot)) ? 0 : 2;
    } else {
      const uint64_t page = after < r.page_len ? r.page_of(w.slot) : w.next_page.page;
      const uint64_t word = after < r.page_len ? w.word : w.next_page.word;
      const uint32_t step_end = Range::unpack(r.pages[page].range.load(std::memory_order_acquire)).step_end;
      const uint32_t row = after & (r.page_len - 1);
      const bool is_over = row >= step_end && Region::state_of(word) == PageState::kClosed;
      if ((row < step_end && r.is_tail(page, row)) || is_over) ends = 2;
    }
  }
  w.num_steps = m;
  w.reward = sum;
  w.discount = product;
  w.ends = ends;
  return g.has_state == 0 || offset + m < r.page_len || need_next(r, w);
}

bool resolve_one(const Region& r, const GatherPlan& plan, Window& w) {
  const IndexConfig& config = r.header->indexes[plan.index];
  const uint64_t page = r.page_of(w.slot);
  const uint32_t offset = r.offset_of(w.slot);
  w.has_prev = w.has_next = false;
  if (plan.needs_walk || plan.needs_end) {
    if (!walk(r, config, plan.needs_end, w)) return false;
  } else {
    w.num_steps = 1;
    if (r.geometry->has_state != 0 && offset + 1 >= r.page_len && !need_next(r, w)) return false;
    w.episode_step = load_head(w.base + offset * r.geometry->record_stride) & kStepMask;
  }
  if (!plan.needs_history) return true;
  if (offset >= std::min(r.geometry->history, w.episode_step)) return true;
  if (!follow(r, r.pages[page].prev, &w.prev_page, &w.prev_base)) return false;
  w.has_prev = true;
  return true;
}

// The first rows of the page after, for a window that runs over the end of its own: without this a batch waits for
// memory three times for each of the few such windows. Nothing here is taken for true; resolve() looks again.
void ask_for_next(const Region& r, uint64_t page) {
  const uint64_t next = r.ref_page(r.pages[page].next.load(std::memory_order_relaxed));
  if (next >= r.geometry->num_pages) return;
  const std::byte* base = r.page_base(next);
  __builtin_prefetch(base);
  __builtin_prefetch(base + r.geometry->record_stride);
}

}  // namespace

void locate(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count) {
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
    if (offset + g.max_n_step >= r.page_len) ask_for_next(r, r.page_of(w.slot));
    const std::byte* record = w.base + offset * stride;
    const std::byte* const end = record + span;
    for (record -= reinterpret_cast<uintptr_t>(record) & 63; record < end; record += 64) __builtin_prefetch(record);
  }
}

void resolve(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count) {
  if (!plan.needs_walk && !plan.needs_end && !plan.needs_history) {  // a row and the one after it
    const uint32_t last = r.geometry->has_state != 0 ? r.page_len - 1 : r.page_len;
    for (size_t k = 0; k < count; ++k) {
      Window& w = windows[which[k]];
      w.has_prev = w.has_next = false;
      w.num_steps = 1;
      if (w.ok && r.offset_of(w.slot) >= last) w.ok = need_next(r, w);
    }
    return;
  }
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    if (w.ok) w.ok = resolve_one(r, plan, w);
  }
}

void recheck(const Region& r, Window* windows, const uint32_t* which, size_t count) {
  if (!RELIVE_RULE(G4_recheck)) return;
  const auto is_same = [&r](uint64_t page, uint64_t word) {
    return r.words[page].load(std::memory_order_acquire) >> kStateBits == word >> kStateBits;
  };
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    if (!w.ok) continue;
    w.ok = is_same(r.page_of(w.slot), w.word) && (!w.has_prev || is_same(w.prev_page.page, w.prev_page.word)) &&
           (!w.has_next || is_same(w.next_page.page, w.next_page.word));
  }
}

}  // namespace relive
