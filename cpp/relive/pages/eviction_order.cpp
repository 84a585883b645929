#include "relive/pages/eviction_order.hpp"

#include <algorithm>
#include <cmath>

#include "relive/index/leaves.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/parked.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kFirst = 0;        // the index whose remover chooses
constexpr uint32_t kMostRows = 8192;  // rows that one choice reads (rule C3)
constexpr double kAges = 0x1.0p40;    // every age is below this
// Weight of one item that is pending. With a weight of 1, the newest pages, which have the fewest items, would be
// evicted first.
constexpr uint32_t kMostWeight = 8191;

bool is_ranked(const Region& r, uint64_t page) {
  if (Region::state_of(r.words[page].load(kRelaxed)) != PageState::kClosed) return false;
  const Range range = range_of(r, page);
  return range.step_begin < range.step_end;
}

double rank_of(const Region& r, uint64_t page, uint32_t weight) {
  const auto age = static_cast<double>(r.pages[page].order.load(kRelaxed));
  return std::min(weight, kMostWeight) * kAges + std::fmod(age, kAges);
}

uint32_t weight_of(double rank) { return static_cast<uint32_t>(rank / kAges); }

void set_rank(Held& held, uint64_t page, double rank) {
  Tree& ranks = held.region.ranks;
  if (ranks.leaf(page) == rank) return;
  ranks.set_leaf(page, rank);
  RELIVE_FAIL_POINT(page_ranked);
  ranks.refresh(&page, 1);
}

// The weight of the live and pending items of rows [begin, end) of a page.
uint32_t weigh_rows(const Region& r, uint64_t page, uint32_t begin, uint32_t end) {
  const Leaves leaves(r, kFirst);
  const Range range = range_of(r, page);
  uint32_t weight = 0;
  for (uint32_t offset = std::max(begin, range.step_begin); offset < std::min(end, range.step_end); ++offset) {
    if (r.is_tail(page, offset)) continue;
    const uint16_t state = leaves.state(r.slot_of(page, offset));
    weight += state == kStatePending ? kMostWeight : leaves.has_life(state) ? 1 : 0;
  }
  return weight;
}

// Calls each(page, rows) for the pages before (or after) a page, as far as windows of num_rows rows reach.
template <class Each>
void walk(const Region& r, uint64_t page, bool back, uint32_t num_rows, Each&& each) {
  for (int64_t left = num_rows; left > 0; left -= r.page_len) {
    page = r.alive((back ? r.pages[page].prev : r.pages[page].next).load(kRelaxed));
    if (page == kNoPage) return;
    each(page, static_cast<uint32_t>(std::min<int64_t>(left, r.page_len)));
  }
}

// Whether rows that a lane has not written yet may reach back into the page.
bool is_awaited(const Region& r, uint64_t page) {
  bool is_it = r.shape(kFirst).before > 0 && is_named_by_its_lane(r, page);
  walk(r, page, false, r.shape(kFirst).before, [&](uint64_t next, uint32_t) {
    is_it |= Region::state_of(r.words[next].load(kRelaxed)) == PageState::kOpen && is_named_by_its_lane(r, next);
  });
  return is_it;
}

uint32_t weigh(const Region& r, uint64_t page) {
  if (is_awaited(r, page)) return kMostWeight;
  uint32_t weight = weigh_rows(r, page, 0, r.page_len);
  const ItemShape& shape = r.shape(kFirst);
  walk(r, page, true, shape.after(),
       [&](uint64_t prev, uint32_t num_rows) { weight += weigh_rows(r, prev, r.page_len - num_rows, r.page_len); });
  walk(r, page, false, shape.before,
       [&](uint64_t next, uint32_t num_rows) { weight += weigh_rows(r, next, 0, num_rows); });
  return std::min(weight, kMostWeight);
}

}  // namespace

void rank_page(Held& held, uint64_t page) {
  const Region& r = held.region;
  set_rank(held, page, is_ranked(r, page) ? rank_of(r, page, 0) : r.ranks.identity());
}

void rank_around(Held& held, uint64_t page) {
  const Region& r = held.region;
  const ItemShape& shape = r.shape(kFirst);
  rank_page(held, page);
  const auto rank = [&held](uint64_t at, uint32_t) { rank_page(held, at); };
  walk(r, page, true, shape.before, rank);
  walk(r, page, false, shape.after(), rank);
}

uint64_t choose_page(Held& held) {
  const Region& r = held.region;
  const uint32_t rows = r.page_len + r.shape(kFirst).before + r.shape(kFirst).after();
  uint64_t page = r.ranks.best();
  for (uint32_t left = kMostRows / rows + 1; page != Tree::kNone && left > 0; --left, page = r.ranks.best()) {
    const uint32_t weight = weigh(r, page);
    if (weight <= weight_of(r.ranks.leaf(page))) break;
    set_rank(held, page, rank_of(r, page, weight));
  }
  return page == Tree::kNone ? uint64_t{kNoPage} : page;
}

void weigh_some(Held& held) { (void)choose_page(held); }

void rank_all(Held& held) {
  Region& r = held.region;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page)
    r.ranks.set_leaf(page, is_ranked(r, page) ? rank_of(r, page, 0) : r.ranks.identity());
  r.ranks.rebuild();
}

const char* broken_ranks(const Region& r) {
  if (!r.chooses_pages()) return nullptr;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const double rank = r.ranks.leaf(page);
    const bool is_in = rank != r.ranks.identity();
    if (is_in != is_ranked(r, page)) return "a page is ranked that cannot be chosen, or one that can is not";
    if (is_in && rank != rank_of(r, page, weight_of(rank))) return "a page is ranked by another age";
    if (is_in && weight_of(rank) > weigh(r, page) && weight_of(rank) != kMostWeight)
      return "a page is taken for one with more items than it has";
  }
  uint64_t size = r.ranks.num_leaves();
  for (uint32_t level = 1; level < r.ranks.num_levels(); ++level) {
    const uint64_t children = size;
    size = (size + Tree::kFanout - 1) / Tree::kFanout;
    for (uint64_t node = 0; node < size; ++node) {
      double least = r.ranks.identity();
      for (uint64_t child = node * Tree::kFanout; child < std::min(children, (node + 1) * Tree::kFanout); ++child)
        least = std::min(least, r.ranks.node(level - 1, child));
      if (least != r.ranks.node(level, node)) return "a node of pages' ranks differs from its children";
    }
  }
  return nullptr;
}

}  // namespace relive
