#include "relive/index/index_view.hpp"

#include <algorithm>
#include <array>

namespace relive {

void IndexView::flush(Held& held, uint32_t index) {
  Dirty& dirty = held.dirty;
  const size_t count = dirty.count_[index];
  const IndexView view(held.region, index);
  const auto refresh_copy = [&](Tree& tree) {
    std::array<uint64_t, Dirty::kRoom> slots;  // refresh() overwrites them
    std::copy_n(dirty.slots_[index].data(), count, slots.data());
    tree.refresh(slots.data(), count);
  };
  if (view.is_bounded()) refresh_copy(held.region.orders_[index]);
  if (view.has_queue()) refresh_copy(held.region.queues_[index]);
  if (view.is_ranked() && RELIVE_RULE(U1_follow))
    held.region.ranks_[index].follow(view.tree(), dirty.slots_[index].data(), count);
  if (view.keeps(kHasDues))
    for (const Due due : kDues)
      if (view.keeps(trait_of(due))) refresh_copy(view.dues(held, due));
  held.region.trees_[index].refresh(dirty.slots_[index].data(), count);
  dirty.count_[index] = 0;
}

void IndexView::flush_all(Held& held) {
  for (uint32_t i = 0; i < held.region.num_indexes; ++i)
    if (held.dirty.count_[i] > 0) flush(held, i);
}

void IndexView::rebuild_ranks(Held& held, uint32_t index, const uint32_t* order, size_t count) {
  flush(held, index);
  held.region.ranks_[index].rebuild(IndexView(held.region, index).tree(), order, count);
}

void IndexView::rebuild(Held& held, uint32_t index) {
  held.dirty.count_[index] = 0;
  held.region.trees_[index].rebuild();
  const IndexView view(held.region, index);
  if (view.is_bounded()) held.region.orders_[index].rebuild();
  if (view.has_queue()) held.region.queues_[index].rebuild();
  if (view.is_ranked() && RELIVE_RULE(U3_rebuild)) held.region.ranks_[index].rebuild(view.tree());
  for (const Due due : kDues)
    if (view.keeps(trait_of(due))) view.dues(held, due).rebuild();
  if (view.keeps(kFades)) {  // the sums are those of the new base from here on (rule Z3)
    std::atomic<uint64_t>& base = view.counts().base;
    base.store(base.load(std::memory_order_relaxed) & ~uint64_t{1}, std::memory_order_release);
  }
}

}  // namespace relive
