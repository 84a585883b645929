#include "relive/pages/sound.hpp"

#include <algorithm>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kMostNumber = uint64_t{1} << 62;

// The page that a ref leads to; kNoPage if it leads to none.
uint64_t led_to(const NameShape& shape, const uint64_t* words, uint64_t ref) {
  const uint64_t page = ref & ((uint64_t{1} << shape.page_bits()) - 1);
  const bool is_there = ref != 0 && page < shape.num_pages && Region::is_used(words[page]) &&
                        Region::generation_of(words[page]) == ref >> shape.page_bits();
  return is_there ? page : uint64_t{kNoPage};
}

// Whether a ref names the present generation of a page that is not in use. No ref does: a page that becomes free gets
// its next generation (rule A1).
bool leads_astray(const NameShape& shape, const uint64_t* words, uint64_t ref) {
  const uint64_t page = ref & ((uint64_t{1} << shape.page_bits()) - 1);
  return ref != 0 && page < shape.num_pages && !Region::is_used(words[page]) &&
         Region::generation_of(words[page]) == ref >> shape.page_bits();
}

// The frames of pages: each has memory, and is one page's own.
const char* unsound_frames(const Region& r, std::vector<uint8_t>& taken) {
  const uint64_t num_committed = r.header->frames_committed.load(kRelaxed);
  std::fill(taken.begin(), taken.end(), uint8_t{0});
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    if (!Region::is_used(r.words[page].load(kRelaxed))) continue;
    const uint32_t frame = r.frames[page].load(kRelaxed);
    if (frame >= num_committed || frame >= taken.size()) return "the frame of a page";
    if (taken[frame]++ != 0) return "the frame of two pages";
  }
  return nullptr;
}

}  // namespace

const char* unsound_pages(const Region& r, const NameShape& shape, const uint64_t* words, const PageRecord* pages) {
  if (1u << shape.page_shift != r.page_len) return "the length of a page";
  const uint64_t end_of_generations = uint64_t{1} << (kLeafBits - shape.slot_bits);
  for (uint64_t page = 0; page < shape.num_pages; ++page) {
    const uint64_t generation = Region::generation_of(words[page]);
    if (generation == 0 || generation > end_of_generations) return "the generation of a page";
    if (!Region::is_used(words[page])) continue;
    const PageRecord& one = pages[page];
    const Range range = Range::unpack(one.range.load(kRelaxed));
    if (range.step_begin > range.step_end || range.step_end > r.page_len) return "the rows of a page";
    if (one.lane_slot.load(kRelaxed) >= shape.max_lanes) return "the lane of a page";
    const uint64_t order = one.order.load(kRelaxed);
    if (order >= kMostNumber || one.first_t >= kMostNumber || one.first_step >= kMostNumber ||
        one.lane_uid.load(kRelaxed) >= kMostNumber || one.ticket.load(kRelaxed) >= kMostNumber)
      return "the numbers of a page";
    if (leads_astray(shape, words, one.prev.load(kRelaxed)) || leads_astray(shape, words, one.next.load(kRelaxed)))
      return "a link to a free page";
    const uint64_t prev = led_to(shape, words, one.prev.load(kRelaxed));
    const uint64_t next = led_to(shape, words, one.next.load(kRelaxed));
    if (prev != kNoPage && pages[prev].order.load(kRelaxed) >= order) return "a page that is older than the one before";
    if (next != kNoPage && pages[next].order.load(kRelaxed) <= order) return "a page that is younger than the next";
  }
  return nullptr;
}

const char* unsound_lanes(const NameShape& shape, const Lane* lanes, uint64_t next_uid) {
  for (uint32_t lane = 0; lane < shape.max_lanes; ++lane)
    if (lanes[lane].uid.load(kRelaxed) >= next_uid) return "the uid of a lane";
  return nullptr;
}

const char* unsound_records(const Region& r, uint32_t index, const uint64_t* words, const ItemWindow* windows) {
  const Records& records = r.records[index];
  const uint64_t end_of_generations = uint64_t{1} << (kLeafBits - r.geometry->slot_bits);
  for (uint64_t record = 0; record < r.map(index).num_leaves; ++record) {
    const uint64_t generation = Region::generation_of(words[record]);
    if (generation == 0 || generation > end_of_generations) return "the generation of a record";
    if (!Region::is_used(words[record])) continue;
    for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
      const ItemWindow& window = windows[record * records.geometry->max_windows + w];
      if (window.num_rows.load(kRelaxed) > records.shape(w).length) return "the rows of a window";
    }
  }
  return nullptr;
}

const char* unsound_region(const Region& r, RecoverScratch& scratch) {
  const Geometry& g = *r.geometry;
  const Header& h = *r.header;
  const NameShape shape{g.num_pages, r.page_shift, g.slot_bits, g.max_lanes, g.shard};
  if (h.next_order.load(kRelaxed) >= kMostNumber || h.next_ticket.load(kRelaxed) >= kMostNumber ||
      h.next_uid.load(kRelaxed) >= kMostNumber)
    return "the numbers of the next page and lane";
  // Plain reads: no other process uses the region.
  const char* wrong = unsound_pages(r, shape, reinterpret_cast<const uint64_t*>(r.words), r.pages);
  if (wrong == nullptr) wrong = unsound_lanes(shape, r.lanes, h.next_uid.load(kRelaxed));
  if (wrong == nullptr) wrong = unsound_frames(r, scratch.frames);
  for (uint32_t i = 0; i < r.num_indexes && wrong == nullptr; ++i)
    if (r.map(i).is_explicit)
      wrong = unsound_records(r, i, reinterpret_cast<const uint64_t*>(r.records[i].words), r.records[i].windows);
  return wrong;
}

}  // namespace relive
