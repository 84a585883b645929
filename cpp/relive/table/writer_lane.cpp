#include "relive/table/writer_lane.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kRowAhead = 512;  // bytes of a row that are prefetched

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

void prefetch_words(const Region& r, const WriterLane& lane) {
  if (lane.page == kNoPage) return;
  const uint64_t slot = r.slot_of(lane.page, lane.step_end);
  __builtin_prefetch(&r.lanes[lane.slot], 1);
  __builtin_prefetch(&r.words[lane.page]);
  __builtin_prefetch(&r.pages[lane.page].range, 1);
  __builtin_prefetch(&r.pages[lane.page].live, 1);
  __builtin_prefetch(&r.frames[lane.page]);
  __builtin_prefetch(&r.tails[lane.page * r.geometry->tail_words]);
  for (const uint32_t i : r.row_indexes()) {
    Leaves(r, i).prefetch(slot);
    Leaves(r, i).prefetch_state(slot);
  }
}

void prefetch_row(const Region& r, const WriterLane& lane) {
  if (lane.page == kNoPage) return;
  const uint64_t stride = r.geometry->record_stride;
  const std::byte* row = lane.frame + lane.step_end * stride;
  __builtin_prefetch(&r.marks[r.slot_of(lane.page, lane.step_end)], 1);
  for (uint64_t at = 0; at < 2 * stride && at < kRowAhead; at += 64) __builtin_prefetch(row + at, 1);
}

}  // namespace relive
