#include "relive/pages/parked.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

PageState state_of(const Region& r, uint64_t page) { return Region::state_of(r.words[page].load(kRelaxed)); }

}  // namespace

bool is_named_by_its_lane(const Region& r, uint64_t page) {
  const uint32_t slot = r.pages[page].lane_slot.load(kRelaxed);
  if (slot >= r.geometry->max_lanes) return false;
  const Lane& lane = r.lanes[slot];
  const uint64_t ref = r.ref_of(page, r.words[page].load(kRelaxed));
  if (lane.state.load(kRelaxed) == LaneState::kLive)
    return lane.open.load(kRelaxed) == ref || lane.ahead.load(kRelaxed) == ref;
  return lane.open.load(kRelaxed) == ref && state_of(r, page) == PageState::kOpen;
}

bool is_parked(const Region& r, uint64_t page) {
  const uint32_t slot = r.pages[page].lane_slot.load(kRelaxed);
  return slot < r.geometry->max_lanes && parked_page(r, slot) == page;
}

uint64_t parked_page(const Region& r, uint32_t lane_slot) {
  const Lane& lane = r.lanes[lane_slot];
  const uint64_t ref = lane.open.load(kRelaxed);
  if (ref == 0 || lane.state.load(kRelaxed) == LaneState::kLive) return kNoPage;
  const uint64_t page = r.alive(ref);
  return page != kNoPage && state_of(r, page) == PageState::kOpen ? page : kNoPage;
}

bool can_go_on(const Region& r, uint64_t page) {
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const uint64_t lanes_since = r.header->next_uid.load(kRelaxed) - r.pages[page].lane_uid.load(kRelaxed);
  return range.step_begin < range.step_end && range.step_end < r.page_len && lanes_since >> 32 == 0 &&
         first_row_there(r, page) + int64_t{r.geometry->history} <= int64_t{range.step_end};
}

bool close_oldest_parked(Held& held) {
  const Region& r = held.region;
  uint64_t oldest = kNoPage;
  for (uint32_t slot = 0; slot < r.geometry->max_lanes; ++slot) {
    const uint64_t page = parked_page(r, slot);
    if (page == kNoPage) continue;
    if (oldest == kNoPage || r.pages[page].order.load(kRelaxed) < r.pages[oldest].order.load(kRelaxed)) oldest = page;
  }
  if (oldest != kNoPage) close_page(held, oldest);
  return oldest != kNoPage;
}

}  // namespace relive
