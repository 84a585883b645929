#include "relive/save/sound.hpp"

#include <cmath>
#include <cstring>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kMostNumber = uint64_t{1} << 62;

bool has_length(const SavedState& state, const char* name, uint64_t num_bytes) {
  for (const LoadedArea& area : state.areas)
    if (area.name == name && area.index == 0) return area.num_bytes == num_bytes;
  return false;
}

// The saved page that a ref leads to; kNoPage if it leads to none.
uint64_t led_to(const SavedShape& shape, const uint64_t* words, uint64_t ref) {
  const uint64_t page = ref & ((uint64_t{1} << shape.page_bits()) - 1);
  const bool is_there = ref != 0 && page < shape.num_pages && Region::is_used(words[page]) &&
                        Region::generation_of(words[page]) == ref >> shape.page_bits();
  return is_there ? page : uint64_t{kNoPage};
}

}  // namespace

const char* unsound_shape(const SavedState& state) {
  const SavedShape& shape = state.shape;
  if (shape.slot_bits < 8 || shape.slot_bits > kLeafBits - 8 || shape.page_shift > 12 || shape.shard > 4095)
    return "the numbers of a key";
  if (shape.num_pages == 0 || shape.num_pages >= kNoPage || shape.num_pages > uint64_t{1} << shape.page_bits())
    return "the number of pages";
  if (shape.max_lanes == 0 || shape.max_lanes > 1u << 24) return "the number of lanes";
  const uint64_t tail_words = std::max(1u, (1u << shape.page_shift) / 64);
  if (!has_length(state, "page words", shape.num_pages * sizeof(uint64_t)) ||
      !has_length(state, "pages", shape.num_pages * sizeof(PageRecord)) ||
      !has_length(state, "tails", shape.num_pages * tail_words * sizeof(uint64_t)) ||
      !has_length(state, "lanes", shape.max_lanes * sizeof(Lane)))
    return "the lengths of its sections";
  return nullptr;
}

const char* unsound_pages(const Region& r, const SavedShape& shape, const uint64_t* words, const PageRecord* pages) {
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
    const uint64_t prev = led_to(shape, words, one.prev.load(kRelaxed));
    const uint64_t next = led_to(shape, words, one.next.load(kRelaxed));
    if (prev != kNoPage && pages[prev].order.load(kRelaxed) >= order) return "a page that is older than the one before";
    if (next != kNoPage && pages[next].order.load(kRelaxed) <= order) return "a page that is younger than the next";
  }
  return nullptr;
}

const char* unsound_lanes(const SavedShape& shape, const Lane* lanes, uint64_t next_uid) {
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

}  // namespace relive
