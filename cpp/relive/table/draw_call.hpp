// The facts that every part of a draw asks for: the request, and the kind of index that it goes to.
//
// Owner:   a DrawCall lives on the stack of the call and borrows everything in it.
// Locking: none.
// Cost:    O(1) each.
#pragma once

#include "relive/index/leaves.hpp"
#include "relive/read/distinct.hpp"
#include "relive/read/draw.hpp"
#include "relive/table/table.hpp"

namespace relive {

struct DrawCall {
  Table& table;
  Region& r;
  const DrawRequest& request;
  const Deadline& deadline;

  int64_t num_items() const { return static_cast<int64_t>(request.num_items); }
  const IndexConfig& config() const { return r.header->indexes[request.index]; }
  bool takes_claims() const { return r.max_times(request.index) != 0 && !table.is_read_only(); }
  // A draw of keys that the caller chose ignores masses.
  bool has_any() const { return request.taken != nullptr || Leaves(r, request.index).has_any(); }
  bool is_by_order() const { return Leaves(r, request.index).kind().choice == Choice::kBest; }
  bool is_shuffled() const { return (config().traits & kIsShuffled) != 0; }
  bool is_distinct() const { return relive::is_distinct(r, request.index); }
  // The draw does not take every item that it meets: it looks for items.
  bool is_sifted() const { return request.where != nullptr || is_distinct(); }
};

}  // namespace relive
