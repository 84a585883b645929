// The invariants of a region, as one reader of everything: broken_invariant().
#include <cmath>
#include <string>
#include <vector>

#include "relive/pages/publish.hpp"
#include "relive/pages/recover.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::string at_page(const char* what, uint64_t page) {
  return std::string(what) + " (page " + std::to_string(page) + ")";
}

// Leaves of one page against its range and use counts.
std::string check_leaves(const Region& r, uint32_t i, uint64_t page, int64_t* live_items) {
  const bool is_used = Region::is_used(r.words[page].load(kRelaxed));
  for (uint32_t offset = 0; offset < r.page_len; ++offset) {
    const double mass = r.trees[i].leaf(r.slot_of(page, offset));
    const bool is_item = is_used && r.is_live_item(i, page, offset);
    *live_items += is_item ? 1 : 0;
    if (!std::isfinite(mass) || mass < 0.0) return at_page("a leaf is not a finite mass >= 0", page);
    if (mass != 0.0 && !is_item) return at_page("a leaf that stands for no live item has mass", page);
  }
  return {};
}

std::string check_page(const Region& r, uint64_t page, uint64_t* live_steps, uint64_t* removed_steps) {
  const PageRecord& record = r.pages[page];
  const Range range = Range::unpack(record.range.load(kRelaxed));
  if (range.step_begin > range.step_end || range.step_end > r.page_len) return at_page("range out of order", page);
  if (range.step_begin > 0 && range.item_begin < range.step_begin + r.geometry->history)
    return at_page("item_begin lies before the history its stacks need", page);
  const uint64_t prev_ref = record.prev.load(kRelaxed);
  if (prev_ref != 0 && (record.flags.load(kRelaxed) & kHistoryFree) == 0) {
    const uint64_t prev = r.alive(prev_ref);
    const uint32_t reach = prev == kNoPage ? r.page_len + r.geometry->history
                                           : Range::unpack(r.pages[prev].range.load(kRelaxed)).item_begin;
    if (reach > r.page_len && range.item_begin < reach - r.page_len)
      return at_page("item_begin does not follow from the page before", page);
  }
  uint32_t live = 0;
  for (uint32_t offset = range.step_begin; offset < range.step_end; ++offset) {
    if (r.is_tail(page, offset)) continue;
    *live_steps += 1;
    bool is_removed = false;
    for (uint32_t i = 0; i < r.num_indexes; ++i) {
      const uint16_t times = r.times[i][r.slot_of(page, offset)].load(kRelaxed);
      live += times == kTimesAwaiting || r.is_drawable(i, times) ? 1 : 0;
      is_removed |= times == kTimesRemoved;
    }
    *removed_steps += is_removed ? 1 : 0;
  }
  if (live != record.live) return at_page("live count differs from its steps", page);
  if (Region::state_of(r.words[page].load(kRelaxed)) == PageState::kClosed && range.step_begin == range.step_end &&
      !is_pinned(r, page))
    return at_page("a closed page without steps was not freed", page);
  return {};
}

std::string check_tree(const Region& r, uint32_t i) {
  const Tree& tree = r.trees[i];
  uint64_t size = tree.num_leaves();
  for (uint32_t level = 1; level < tree.num_levels(); ++level) {
    const uint64_t children = size;
    size = (size + Tree::kFanout - 1) / Tree::kFanout;
    for (uint64_t node = 0; node < size; ++node) {
      double sum = 0.0;
      for (uint64_t child = node * Tree::kFanout; child < children && child < (node + 1) * Tree::kFanout; ++child)
        sum += tree.node(level - 1, child);
      if (sum != tree.node(level, node)) return "an inner node differs from the sum of its children";
    }
  }
  return {};
}

std::string check_lists(const Region& r) {
  const Header& h = *r.header;
  std::vector<uint8_t> seen(r.geometry->num_pages, 0);
  uint64_t last_order = 0, count = 0;
  for (uint32_t page = h.ring_head.load(kRelaxed); page != kNoPage; page = r.pages[page].ring_next) {
    if (page >= r.geometry->num_pages || seen[page]++ != 0 || ++count > r.geometry->num_pages)
      return "the age ring is broken";
    if (!Region::is_used(r.words[page].load(kRelaxed))) return at_page("a free page is on the age ring", page);
    if (r.pages[page].order.load(kRelaxed) <= last_order) return at_page("the age ring is out of order", page);
    last_order = r.pages[page].order.load(kRelaxed);
  }
  count = 0;
  uint32_t page = h.free_head.load(kRelaxed);
  for (uint32_t left = h.num_free_pages.load(kRelaxed); left > 0; --left, page = r.pages[page].free_next) {
    if (page >= r.geometry->num_pages || seen[page]++ != 0) return "the free list is broken";
    if (Region::state_of(r.words[page].load(kRelaxed)) != PageState::kFree)
      return at_page("a used page is on the free list", page);
  }
  std::vector<uint8_t> frames(r.geometry->num_frames, 0);
  for (uint64_t p = 0; p < r.geometry->num_pages; ++p) {
    const uint64_t word = r.words[p].load(kRelaxed);
    if (seen[p] == 0 && Region::state_of(word) != PageState::kRetired) return at_page("a page is on no list", p);
    if (Region::is_used(word) && frames[r.frames[p].load(kRelaxed)]++ != 0)
      return at_page("two pages share a frame", p);
  }
  const uint64_t num_free = h.num_free_frames.load(kRelaxed);
  for (uint64_t f = 0; f < num_free; ++f)
    if (frames[r.free_frames[f].load(kRelaxed)]++ != 0) return "a frame is free and used, or free twice";
  for (uint64_t f = 0; f < h.frames_committed.load(kRelaxed); ++f)
    if (frames[f] == 0) return "a committed frame is lost";
  return {};
}

}  // namespace

std::string broken_invariant(const Region& r) {
  const Header& h = *r.header;
  uint64_t live_steps = 0, removed_steps = 0;
  std::string broken;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    if (!Region::is_used(r.words[page].load(kRelaxed))) continue;
    broken = check_page(r, page, &live_steps, &removed_steps);
    if (!broken.empty()) return broken;
  }
  if (live_steps != h.live_steps.load(kRelaxed)) return "live_steps differs from the steps in the pages";
  if (live_steps > r.geometry->capacity) return "more live steps than capacity";
  if (removed_steps != h.removed_steps.load(kRelaxed)) return "removed_steps differs from the steps in the pages";
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    int64_t live_items = 0;
    for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
      broken = check_leaves(r, i, page, &live_items);
      if (!broken.empty()) return broken;
    }
    if (live_items != h.index_state[i].live_items.load(kRelaxed)) return "live_items differs from the leaves";
    broken = check_tree(r, i);
    if (!broken.empty()) return broken;
  }
  broken = broken_bulk(r);
  return broken.empty() ? check_lists(r) : broken;
}

}  // namespace relive
