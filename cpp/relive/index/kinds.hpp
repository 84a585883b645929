// What a sampler or a remover is: one row each in one table.
//
// A new sampler is a row here, its way to choose in read/draw.cpp (unless it is one of those that stand), and its name
// in Python. What its leaf is, how priorities become leaves and how the tree combines them follow from the row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "relive/words/layout.hpp"

namespace relive {

// What a leaf holds. Both are doubles: a ticket is a whole number below 2^53, 285 years of a million a second.
enum class LeafKind : uint32_t { kMass, kTicket };

// How an item is found from the reductions of its leaves.
enum class Choice : uint32_t { kByMass, kBest };

// A remover's row says what it would order items by; the one there is has no leaves, as pages go in the order of their
// tickets, so nothing but its name is read yet.
struct Kind {
  const char* name;     // as configurations say it
  LeafKind leaf;        // what it holds
  Reduction reduction;  // what an inner node is of its children
  Choice choice;        // how a draw goes down
  bool has_priorities;  // update_priorities may be called, `initial` counts
  // Leaves of priorities, each finite and >= 0: leaves[i] of priorities[i]. Relative error below 1e-9. Null: no leaves.
  void (*leaves_of)(const IndexConfig& config, const float* priorities, size_t count, double* leaves);
};

const Kind& kind_of(Sampling sampling);
const Kind& kind_of(Removal removal);

// By name; false where the table has no such row. `known` then lists the names there are.
bool find_sampler(const std::string& name, Sampling* sampling, std::string* known);
bool find_remover(const std::string& name, Removal* removal, std::string* known);

// Fills in what follows from the index's kinds. kInvalidConfig where there is no such row.
Status settle_kinds(IndexConfig* config);

// The leaf of one priority.
double leaf_of(const IndexConfig& config, float priority);

}  // namespace relive
