// The kinds of samplers and removers: a kind is one row of a table (kinds.cpp).
//
// A new sampler needs a row, its choice in read/draw.cpp (unless an existing Choice serves), and its name in Python.
// The row gives the value of a leaf, how priorities become leaves and how the tree combines them.
//
// Owner:   the tables are constants. Locking: none.
// Cost:    O(1). One power alone takes 50 ns, one of many a fifth of that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "relive/words/layout.hpp"

namespace relive {

// The value of a leaf. All values are finite doubles above 0, but a mass may be 0.
enum class LeafKind : uint32_t {
  kMass,      // a part of the sum: the mass of the item's priority, or 1
  kTicket,    // the number of the item in the order of arrival, below 2^53: 285 years of a million a second
  kPriority,  // the priority; of equal priorities the one that came, or was updated, longest ago is better
  kTag,       // a random number that the item keeps
  kLatest,    // a part of the sum: 1 while the item is one of those that came last
  kFading     // a part of the sum: decay ^ staleness, times a factor that all items share (rule Z3)
};

// The way in which a draw finds an item from the reductions of the leaves.
enum class Choice : uint32_t {
  kByMass,       // by a point in the sum
  kBest,         // the best items, in order
  kByRank,       // by a point in the sum of the weights of ranks (read/ranked.hpp)
  kOfBest,       // as kByRank, with weight 1 for the best items and 0 for the others
  kOncePerEpoch  // every item once an epoch, in the order of a permutation (read/shuffle.hpp)
};

struct Kind {
  const char* name;     // in configurations
  LeafKind leaf;        // the value of a leaf
  Reduction reduction;  // an inner node is this of its children
  Choice choice;        // the way of a draw
  bool is_ranked() const { return choice == Choice::kByRank || choice == Choice::kOfBest; }
  bool has_priorities;  // update_priorities may be called, `initial` matters
  // masses[i] is the mass of priorities[i], which are finite and >= 0. Relative error below 1e-9. Null: leaves are no
  // masses.
  void (*masses_of)(double exponent, const float* priorities, size_t count, double* masses);
};

// The facts from which the leaf of an item follows, if it is no mass: priority, ticket, and the table's seed.
struct Standing {
  float priority;
  uint64_t ticket;
  uint64_t seed;
};

const Kind& kind_of(Sampling sampling);
const Kind& kind_of(Removal removal);

// By name. False if the table has no such row; then `known` lists the names that it has.
bool find_sampler(const std::string& name, Sampling* sampling, std::string* known);
bool find_remover(const std::string& name, Removal* removal, std::string* known);

// Fills in the fields of the index that follow from its kinds. kInvalidConfig if a row does not exist, or if the
// remover does not fit the index.
Status settle_kinds(IndexConfig* config);

// The mass of a priority in a draw; 1 if the sampler has no masses.
double leaf_of(const IndexConfig& config, float priority);
// The leaf of an item in the tree of a sampler that has an order, and in the remover's tree.
double sampling_leaf(const IndexConfig& config, const Standing& standing);
double removal_leaf(const IndexConfig& config, const Standing& standing);
// Whether both the sampler and the remover look at priorities. If so: the sampler's leaf for a remover's leaf.
bool draws_as_it_removes(const IndexConfig& config);
double sampling_leaf_of(const IndexConfig& config, double removal_leaf);
void sampling_leaves_of(const IndexConfig& config, const double* removal_leaves, size_t count, double* leaves);
// The priority from which a leaf of the sampler was made, with the exponent that made it. NaN if the leaf does not tell:
// the sampler ignores priorities, or the exponent is 0.
float priority_of_sampling(const IndexConfig& config, double exponent, double leaf);
// The priority from which such a leaf of the remover was made.
float priority_of_removal(const IndexConfig& config, double removal_leaf);

// Whether masses are priorities to an exponent, which may be changed (rule H2).
bool has_exponent(const IndexConfig& config);
// Changes masses[i] from one exponent above 0 to another one, through the float32 priority. For from >= 1/16 the
// priority is recovered exactly, so repeated changes lose nothing; below that it is within 1e-9 / from. Masses that
// powers cut off at 2^+-1000 stay cut off.
void raise_masses(double from, double to, double* masses, size_t count);

}  // namespace relive
