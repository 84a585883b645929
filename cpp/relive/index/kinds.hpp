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

// What a leaf holds. All are doubles above 0 and finite, 0 a mass apart.
enum class LeafKind : uint32_t {
  kMass,      // a share of the whole: of its priority, or 1
  kTicket,    // its place among those that came: a whole number below 2^53, 285 years of a million a second
  kPriority,  // its priority; of equal ones that which came, or was updated, longest ago is the better
  kTag,       // a random number of its own, for as long as it is there
  kLatest,    // a share of the whole: 1 while its item is one of those that came last
  kFading     // a share of the whole: decay ^ staleness, but for a factor that all have (rule Z3)
};

// How an item is found from the reductions of its leaves.
enum class Choice : uint32_t {
  kByMass,  // by a point in their sum
  kBest,    // the best ones, in order
  kByRank,  // by a point in the sum of what their ranks weigh (read/ranked.hpp)
  kOfBest,  // the same where the best ones weigh 1 and the others nothing
  kInTurn   // each once an epoch, wherever it stands (read/shuffle.hpp)
};

struct Kind {
  const char* name;     // as configurations say it
  LeafKind leaf;        // what it holds
  Reduction reduction;  // what an inner node is of its children
  Choice choice;        // how a draw goes down
  bool is_ranked() const { return choice == Choice::kByRank || choice == Choice::kOfBest; }
  bool has_priorities;  // update_priorities may be called, `initial` counts
  // Masses of priorities, each finite and >= 0: masses[i] of priorities[i]. Relative error below 1e-9. Null: no kMass.
  void (*masses_of)(double exponent, const float* priorities, size_t count, double* masses);
};

// What the leaf of an item follows from where it is no mass: its priority, its ticket, the table's seed.
struct Standing {
  float priority;
  uint64_t ticket;
  uint64_t seed;
};

const Kind& kind_of(Sampling sampling);
const Kind& kind_of(Removal removal);

// By name; false where the table has no such row. `known` then lists the names there are.
bool find_sampler(const std::string& name, Sampling* sampling, std::string* known);
bool find_remover(const std::string& name, Removal* removal, std::string* known);

// Fills in what follows from the index's kinds. kInvalidConfig where there is no such row, or the remover cannot be.
Status settle_kinds(IndexConfig* config);

// The mass of one priority in a draw; 1 where the sampler has no masses.
double leaf_of(const IndexConfig& config, float priority);
// The leaf of an item in the tree of a sampler that has an order, and in the remover's.
double sampling_leaf(const IndexConfig& config, const Standing& standing);
double removal_leaf(const IndexConfig& config, const Standing& standing);
// Where both the sampler and the remover look at priorities, the leaf in a draw that belongs to a remover's leaf.
bool draws_as_it_removes(const IndexConfig& config);
double sampling_leaf_of(const IndexConfig& config, double removal_leaf);
// The same of many: a power alone takes 50 ns, one of many a fifth of that.
void sampling_leaves_of(const IndexConfig& config, const double* removal_leaves, size_t count, double* leaves);
// The priority that such a remover's leaf was made of.
float priority_of_removal(const IndexConfig& config, double removal_leaf);

// Whether masses are priorities to an exponent: the one that may be changed (rule H2).
bool has_exponent(const IndexConfig& config);
// masses[i], made with one exponent above 0, as they are with another one: by way of the float32 that the priority was,
// which comes back as it was where `from` >= 1/16, so that nothing is lost however often it is changed. Below that within
// 1e-9 / from of it. Masses that powers cut off at 2^+-1000 stay what was cut off.
void raise_masses(double from, double to, double* masses, size_t count);

}  // namespace relive
