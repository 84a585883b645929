#include "relive/table/writer_lane.hpp"

#include <vector>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// For an OPEN page: its bulk is in memory and does not move.
std::byte* bulk_of(const Region& r, uint64_t page) {
  return r.bulk ? r.bulk.frame(r.bulk.place(page).number) : nullptr;
}

}  // namespace

void begin_lane(Held& held, WriterLane& lane, uint32_t slot, uint32_t participant) {
  const Region& r = held.region;
  open_lane(held, slot, participant);
  lane.slot = slot;
  lane.uid = static_cast<uint32_t>(r.lanes[slot].uid.load(kRelaxed));
  const uint64_t open = r.lanes[slot].open.load(kRelaxed);
  if (open == 0) return;
  take_page(r, lane, false, open);
  lane.step_end = Range::unpack(r.pages[lane.page].range.load(kRelaxed)).step_end;
}

void take_page(const Region& r, WriterLane& lane, bool ahead, uint64_t ref) {
  const uint64_t page = r.ref_page(ref);
  if (ahead) {
    lane.ahead_frame = r.page_base(page);
    lane.ahead_bulk = bulk_of(r, page);
    return;
  }
  lane.page = page;
  lane.word = r.words[page].load(kRelaxed);
  lane.frame = r.page_base(page);
  lane.bulk = bulk_of(r, page);
  lane.step_end = 0;
  lane.has_seam = false;
  if (lane.starts != nullptr) lane.starts->cells.clear();  // unused cells stay with the page before, and go with it
}

void advance(const Region& r, WriterLane& lane, bool has_tail) {
  const bool tail_here = has_tail && lane.step_end + lane.run.count < r.page_len;
  lane.step_end += lane.run.count + (tail_here ? 1 : 0);
  lane.has_seam = lane.run.has_seam && !lane.run.ends;
  if (lane.step_end < r.page_len) return;
  lane.page = kNoPage;
  if (lane.ahead_frame == nullptr) {
    lane.has_seam = false;
    return;
  }
  const bool has_seam = lane.has_seam;
  take_page(r, lane, false, r.lanes[lane.slot].open.load(kRelaxed));
  lane.ahead_frame = nullptr;
  lane.has_seam = has_seam;
  lane.step_end = has_tail && !tail_here ? 1 : 0;
}

void note_episode_page(const Region& r, WriterLane& lane) {
  if (lane.run.count == 0) return;
  if (lane.in_episode && lane.run.first != 0) return;  // noted with the rows before it
  if (!lane.in_episode) lane.episode_pages.clear();
  const uint64_t ref = r.ref_of(lane.page, lane.word);
  if (!lane.episode_pages.empty() && lane.episode_pages.back().ref == ref) return;
  if (lane.episode_pages.size() == lane.episode_pages.capacity())  // before the list grows it drops pages that are gone
    std::erase_if(lane.episode_pages, [&r](const EpisodePage& page) { return r.alive(page.ref) == kNoPage; });
  lane.episode_pages.push_back({ref, lane.run.first});
}

}  // namespace relive
