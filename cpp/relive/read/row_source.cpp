#include "relive/read/row_source.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/read/rows.hpp"

namespace relive {
namespace {

// Whether the row after a step, to which its next states belong, is written: it is committed, or its cells of states were
// written with the step before it.
bool is_followed(const Region& r, const Window& w) {
  Run at{r.page_of(w.slot), w.word, nullptr};
  uint32_t row = r.offset_of(w.slot) + 1;
  if (row == r.page_len) {
    if (!follow(r, r.pages[at.page].next, &at)) return false;
    row = 0;
  }
  if (row < Range::unpack(r.pages[at.page].range.load(std::memory_order_acquire)).step_end) return true;
  const uint64_t seam = r.lanes[r.pages[at.page].lane_slot.load(std::memory_order_relaxed)].seam.load();
  return seam == static_cast<uint64_t>(r.key_of(r.slot_of(at.page, row), at.word));
}

// Steps are looked up by their rows: each one that is committed and was not deleted; if late columns are read, each one
// that has them. If there are states, the state after the step is there, too.
size_t look_up_steps(const Region& r, bool needs_late, const int64_t* keys, Window* windows, uint32_t* which,
                     size_t count) {
  const ItemMap map = r.map(r.steps());
  size_t found = 0;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    Window& w = windows[i];
    const uint64_t page = r.page_of(w.slot);
    w.word = map.word_of(w.slot, r.key_generation(keys[i]));
    w.ok = w.word != 0 && r.is_step(page, r.offset_of(w.slot)) && !is_removed(r, w.slot);
    acquire_fence();
    if (w.ok && r.geometry->has_state != 0) w.ok = is_followed(r, w);
    if (w.ok && needs_late)
      w.ok = (load_head(r.page_base(page) + r.offset_of(w.slot) * r.geometry->record_stride) & kLateBit) == 0;
    if (w.ok) which[found++] = i;
  }
  acquire_fence();
  return found;
}

}  // namespace

Status FrameSource::read(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, size_t batch,
                         Runs* runs, std::byte* const* out) {
  locate(r_, plan, windows, which, std::min(count, kBlock));
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    const size_t after = begin + size;
    locate(r_, plan, windows, which + after, std::min(kBlock, count - after));
    resolve(r_, plan, windows, which + begin, size, runs);
    copy_rows(r_, plan, windows, *runs, which + begin, size, batch, out);
  }
  return {};
}

size_t look_up(const Region& r, const GatherPlan& plan, const int64_t* keys, Window* windows, uint32_t* which,
               size_t count) {
  if (plan.are_steps) return look_up_steps(r, plan.needs_late, keys, windows, which, count);
  const uint32_t index = plan.index;
  const Leaves leaves(r, index);
  const ItemMap map = r.map(index);
  size_t found = 0;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    Window& w = windows[i];
    w.word = map.word_of(w.slot, r.key_generation(keys[i]));
    w.ok = w.word != 0 && leaves.is_published(w.slot);
    if (w.ok) which[found++] = i;
  }
  return found;
}

}  // namespace relive
