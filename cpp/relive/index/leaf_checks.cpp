#include "relive/index/leaf_checks.hpp"

#include <cmath>

#include "relive/index/due_times.hpp"
#include "relive/index/fresh_masses.hpp"
#include "relive/index/versions.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Whether each inner node is the reduction of its children.
bool follows(const Tree& tree, Reduction reduction) {
  uint64_t size = tree.num_leaves();
  for (uint32_t level = 1; level < tree.num_levels(); ++level) {
    const uint64_t children = size;
    size = (size + Tree::kFanout - 1) / Tree::kFanout;
    for (uint64_t node = 0; node < size; ++node) {
      double value = tree.identity();
      for (uint64_t child = node * Tree::kFanout; child < children && child < (node + 1) * Tree::kFanout; ++child) {
        const double next = tree.node(level - 1, child);
        value = reduction == Reduction::kSum   ? value + next
                : reduction == Reduction::kMin ? std::fmin(value, next)
                                               : std::fmax(value, next);
      }
      if (value != tree.node(level, node)) return false;
    }
  }
  return true;
}

}  // namespace

const char* LeafChecks::wrong_count(const ItemCounts& counted) const {
  if (counted.live_items != counts().live_items.load(kRelaxed)) return "live_items differs from the leaves";
  if (counted.pending != counts().pending.load(kRelaxed)) return "the count of pending items differs from the leaves";
  if (counted.unused != counts().unused.load(kRelaxed)) return "the count of unused items differs from the leaves";
  if (counted.massless != counts().massless.load(kRelaxed))
    return "the count of massless items differs from the leaves";
  return nullptr;
}

const char* LeafChecks::wrong_freshness(uint64_t slot, bool is_there, bool is_item) const {
  if (!keeps(kIsAged | kIsLatest | kFades)) return nullptr;
  const DueTimes times(*this);
  if (keeps(kIsAged) && times.has(Due::kAge, slot) != (is_there && is_published(slot)))
    return "a version is noted of what is no item, or none of what is one";
  if (keeps(kIsAged) && is_item && dues(Due::kAge).leaf(slot) != oldest_version(r_, index_, slot))
    return "the version that is noted of an item is not its oldest row's";
  if (keeps(kIsLatest) && times.has(Due::kPlace, slot) && !(is_there && is_published(slot)))
    return "a place among the items that came last is noted of what is no item";
  if (is_item && keeps(kIsLatest | kFades) && tree().leaf(slot) != FreshMasses(*this).of(slot))
    return "an item's mass does not follow from its version, or from its place among those that came";
  return nullptr;
}

const char* LeafChecks::broken_node() const {
  if (!follows(tree(), config().reduction)) return "an inner node differs from the reduction of its children";
  if (is_bounded() && !follows(orders(), config().order)) return "a remover's inner node differs from its children's";
  if (has_queue() && !follows(places(), Reduction::kMin))
    return "an inner node of the queue differs from its children's";
  for (const Due due : kDues)
    if (keeps(trait_of(due)) && !follows(dues(due), Reduction::kMin))
      return "an inner node of what is due first differs from its children's";
  return is_ranked() ? ranks().broken(tree()) : nullptr;
}

}  // namespace relive
