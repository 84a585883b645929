#include "relive/table/listing.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr size_t kTogether = 256;      // items that a condition tests together
constexpr size_t kPagesAWindow = 514;  // of the longest window that a table allows, in the smallest pages

// Candidates: a condition tests many at a time.
struct Candidates {
  uint64_t leaves[kTogether], words[kTogether], ages[kTogether];
  double ranks[kTogether];
  bool passes[kTogether];
  size_t count = 0;
};

void take(const Region& r, uint32_t index, const Where* where, Candidates* from, DrawScratch* scratch, Listing* out) {
  const ItemMap& map = r.map(index);
  std::fill_n(from->passes, from->count, true);
  if (where != nullptr) sift(r, *where, from->leaves, from->words, from->count, scratch, from->passes);
  acquire_fence();
  for (size_t k = 0; k < from->count; ++k) {
    if (!from->passes[k]) continue;
    // The values that were read belong to this item only if it is still there (rule G4).
    const uint64_t word = map.word(from->leaves[k]);
    if (RELIVE_RULE(G4_recheck) && Region::generation_of(word) != Region::generation_of(from->words[k])) continue;
    out->keys.push_back(r.key_of_leaf(index, from->leaves[k], from->words[k]));
    out->ages.push_back(from->ages[k]);
    out->ranks.push_back(from->ranks[k]);
  }
  from->count = 0;
}

}  // namespace

Status list_items(Table& table, uint32_t index, uint64_t first, uint64_t count, const Where* where, Listing* out) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = table.region();
  const ItemMap& map = r.map(index);
  const bool are_steps = index == r.steps();
  const Leaves leaves(r, are_steps ? 0 : index);
  const double sign = leaves.kind().reduction == Reduction::kMin ? 1.0 : -1.0;
  const uint64_t begin = std::min(first, map.num_leaves), end = begin + std::min(count, map.num_leaves - begin);
  DrawScratch scratch;
  scratch.runs.reserve(where != nullptr ? 32 * kPagesAWindow : 0);
  Candidates some;
  for (uint64_t leaf = begin; leaf < end; ++leaf) {
    const uint64_t word = map.word(leaf);
    if (!Region::is_used(word)) {
      if (!map.is_explicit) leaf |= r.page_len - 1;  // a free page has no items
      continue;
    }
    if (are_steps ? !r.is_step(r.page_of(leaf), r.offset_of(leaf)) || is_removed(r, leaf)
                  : !leaves.is_drawable(leaves.state(leaf)))
      continue;
    some.leaves[some.count] = leaf;
    some.words[some.count] = word;
    some.ages[some.count] = age_of(r, index, leaf, word);
    some.ranks[some.count] = are_steps ? 0.0 : sign * leaves.mass(leaf);
    if (++some.count == kTogether) take(r, index, where, &some, &scratch, out);
  }
  take(r, index, where, &some, &scratch, out);
  out->next_leaf = end < map.num_leaves ? end : 0;
  return {};
}

}  // namespace relive
