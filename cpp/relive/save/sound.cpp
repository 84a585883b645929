#include "relive/save/sound.hpp"

#include <cmath>
#include <cstring>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

bool has_length(const SavedState& state, const char* name, uint64_t num_bytes) {
  for (const LoadedArea& area : state.areas)
    if (area.name == name && area.index == 0) return area.num_bytes == num_bytes;
  return false;
}

}  // namespace

const char* unsound_shape(const SavedState& state) {
  const NameShape& shape = state.shape;
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

}  // namespace relive
