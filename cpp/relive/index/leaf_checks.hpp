// The checks of an index's leaves, for check(). Each function returns a sentence on the first fault, or null.
//
// Owner:   a view of one index (index_view.hpp). It changes nothing.
// Locking: under the table lock.
// Cost:    O(1) a leaf, O(rows of the item) where versions count; broken_node O(n).
#pragma once

#include "relive/index/index_view.hpp"

namespace relive {

class LeafChecks final : public IndexView {
 public:
  using IndexView::IndexView;
  explicit LeafChecks(const IndexView& index) : IndexView(index) {}

  // The index's counts, against counts of its leaves.
  const char* wrong_count(const ItemCounts& counted) const;
  // The version and the place that are noted of an item, and the mass that follows from them. is_there: its step is
  // there, or its record in use.
  const char* wrong_freshness(uint64_t slot, bool is_there, bool is_item) const;
  // Inner nodes and classes of priorities, against the leaves.
  const char* broken_node() const;
};

}  // namespace relive
