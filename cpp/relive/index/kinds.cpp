#include "relive/index/kinds.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "relive/words/power.hpp"
#include "relive/words/rank_law.hpp"
#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr uint64_t kTags = ~uint64_t{0};  // a stream of random numbers that no participant has
constexpr double kLeastMass = 1e-300;     // for removers: an item of priority 0 goes only if all have priority 0

void ones(double, const float*, size_t count, double* masses) { std::fill(masses, masses + count, 1.0); }

// mass = priority ^ exponent.
void powers(double exponent, const float* priorities, size_t count, double* masses) {
  if (exponent == 1.0) {
    std::copy(priorities, priorities + count, masses);
  } else {
    powers_of(priorities, count, 1.0, exponent, masses);
  }
}

// If ranks count, a leaf is the priority itself. A leaf of 0 is no item, so a priority of 0 becomes kLeastMass.
void themselves(double, const float* priorities, size_t count, double* masses) {
  for (size_t i = 0; i < count; ++i) masses[i] = std::max(static_cast<double>(priorities[i]), kLeastMass);
}

constexpr Kind kSamplers[] = {
    {"uniform", LeafKind::kMass, Reduction::kSum, Choice::kByMass, false, &ones},
    {"prioritized", LeafKind::kMass, Reduction::kSum, Choice::kByMass, true, &powers},
    {"fifo", LeafKind::kTicket, Reduction::kMin, Choice::kBest, false, nullptr},
    {"lifo", LeafKind::kTicket, Reduction::kMax, Choice::kBest, false, nullptr},
    {"min_priority", LeafKind::kPriority, Reduction::kMin, Choice::kBest, true, nullptr},
    {"max_priority", LeafKind::kPriority, Reduction::kMax, Choice::kBest, true, nullptr},
    {"rank_based", LeafKind::kMass, Reduction::kMax, Choice::kByRank, true, &themselves},
    {"top_k", LeafKind::kMass, Reduction::kMax, Choice::kOfBest, true, &themselves},
    {"latest", LeafKind::kLatest, Reduction::kSum, Choice::kByMass, false, &ones},
    {"fading", LeafKind::kFading, Reduction::kSum, Choice::kByMass, false, &ones},
    {"shuffle", LeafKind::kMass, Reduction::kSum, Choice::kOncePerEpoch, false, &ones},
};

// Removers: which item goes if there are more than max_items. (Steps go in the order of their pages' tickets, rule D3.)
// Reservoir: the items of the smallest tags stay, so every item that ever came is there with the same probability.
constexpr Kind kRemovers[] = {
    {"fifo", LeafKind::kTicket, Reduction::kMin, Choice::kBest, false, nullptr},
    {"lifo", LeafKind::kTicket, Reduction::kMax, Choice::kBest, false, nullptr},
    {"min_priority", LeafKind::kPriority, Reduction::kMin, Choice::kBest, true, nullptr},
    {"max_priority", LeafKind::kPriority, Reduction::kMax, Choice::kBest, true, nullptr},
    {"uniform", LeafKind::kMass, Reduction::kSum, Choice::kByMass, false, &ones},
    {"prioritized", LeafKind::kMass, Reduction::kSum, Choice::kByMass, true, &powers},
    {"reservoir", LeafKind::kTag, Reduction::kMax, Choice::kBest, false, nullptr},
};

constexpr uint32_t kLeastNormal = 0x00100000;  // the upper half of the least double that is not subnormal

double mass_of(const Kind& kind, double exponent, float priority) {
  double mass;
  kind.masses_of(exponent, &priority, 1, &mass);
  return mass;
}

// Positive floats and doubles are ordered as their bits are. The upper half of this double is the priority, the lower
// half the place in the order of arrival: the items that came first are low among minima and high among maxima. Tickets
// that are 2^32 apart compare wrongly. The upper half is never that of a subnormal double, which threads may flush to
// 0.
double by_priority(const Kind& kind, const Standing& standing) {
  const auto came = static_cast<uint32_t>(standing.ticket);
  const uint32_t rank = kind.reduction == Reduction::kMax ? ~came : came;
  const uint32_t priority = (std::bit_cast<uint32_t>(standing.priority) & 0x7fffffff) + kLeastNormal;  // -0.0 is 0.0
  return std::bit_cast<double>(uint64_t{priority} << 32 | rank);
}

// The inverse; of the ticket only the lower half.
Standing standing_of(const Kind& kind, double leaf) {
  const auto bits = std::bit_cast<uint64_t>(leaf);
  const auto rank = static_cast<uint32_t>(bits);
  const auto priority = static_cast<uint32_t>(bits >> 32) - kLeastNormal;
  return {std::bit_cast<float>(priority), kind.reduction == Reduction::kMax ? ~rank : rank, 0};
}

double leaf_at(const Kind& kind, double exponent, const Standing& standing) {
  switch (kind.leaf) {
    case LeafKind::kTicket:
      return static_cast<double>(standing.ticket);
    case LeafKind::kPriority:
      return by_priority(kind, standing);
    case LeafKind::kTag:
      return CounterRng(standing.seed, kTags, 0, 0).uniform(standing.ticket) + 0x1.0p-54;
    default:
      return std::max(mass_of(kind, exponent, standing.priority), kLeastMass);
  }
}

// The inverse of powers() for one priority. Exact for exponents >= 1/16, as in raise_masses().
float priority_of_mass(double exponent, double mass) {
  if (!(exponent > 0.0)) return std::numeric_limits<float>::quiet_NaN();
  if (mass <= kLeastMass) return 0.0f;
  double root = mass;
  if (exponent != 1.0) powers_of(&mass, 1, 1.0, 1.0 / exponent, &root);
  return static_cast<float>(std::clamp(root, static_cast<double>(std::numeric_limits<float>::denorm_min()),
                                       static_cast<double>(std::numeric_limits<float>::max())));
}

template <size_t kCount, class Number>
bool find(const Kind (&kinds)[kCount], const std::string& name, Number* number, std::string* known) {
  for (size_t row = 0; row < kCount; ++row) {
    if (name == kinds[row].name) {
      *number = static_cast<Number>(row);
      return true;
    }
    *known += (row == 0 ? "'" : " or '") + std::string(kinds[row].name) + "'";
  }
  return false;
}

}  // namespace

const Kind& kind_of(Sampling sampling) { return kSamplers[static_cast<size_t>(sampling)]; }
const Kind& kind_of(Removal removal) { return kRemovers[static_cast<size_t>(removal)]; }

bool find_sampler(const std::string& name, Sampling* sampling, std::string* known) {
  return find(kSamplers, name, sampling, known);
}

bool find_remover(const std::string& name, Removal* removal, std::string* known) {
  return find(kRemovers, name, removal, known);
}

Status settle_kinds(IndexConfig* config) {
  const auto unknown = [](const char* what, uint32_t got) {
    return Status(Code::kInvalidConfig)
        .with_text("what", what)
        .with_text("expected", "a row of the table of kinds")
        .with_int("got", got);
  };
  const auto sampling = static_cast<uint32_t>(config->sampling), removal = static_cast<uint32_t>(config->removal);
  if (sampling >= std::size(kSamplers)) return unknown("sampler", sampling);
  if (removal >= std::size(kRemovers)) return unknown("remover", removal);
  const Kind &sampler = kind_of(config->sampling), &remover = kind_of(config->removal);
  if (config->removal != Removal::kFifo && config->max_items == 0)
    return Status(Code::kInvalidConfig)
        .with_text("what", "max_items")
        .with_text("expected", std::string("a number where the remover is ") + remover.name)
        .with_int("got", 0);
  if (sampler.choice == Choice::kByRank &&
      !(config->priority_exponent >= 0.0 && config->priority_exponent <= RankLaw::kMaxExponent))
    return Status(Code::kInvalidConfig)
        .with_text("what", "priority_exponent of ranks")
        .with_text("expected", "0 to 10")
        .with_double("got", config->priority_exponent);
  const bool is_share = config->best_share > 0.0 && config->best_share <= 1.0;
  if (sampler.choice == Choice::kOfBest && config->best_items == 0 && !is_share)
    return Status(Code::kInvalidConfig)
        .with_text("what", "share of the best")
        .with_text("expected", "above 0, at most 1")
        .with_double("got", config->best_share);
  config->reduction = sampler.reduction;
  config->order = remover.reduction;
  config->traits = (sampler.has_priorities || remover.has_priorities ? kHasPriorities : 0) |
                   (sampler.choice == Choice::kBest ? kIsOrdered : 0) | (sampler.is_ranked() ? kIsRanked : 0) |
                   (sampler.leaf == LeafKind::kLatest ? kIsLatest : 0) |
                   (sampler.leaf == LeafKind::kFading ? kFades : 0) |
                   (sampler.choice == Choice::kOncePerEpoch ? kIsShuffled : 0) | (config->traits & kIsDistinct);
  return {};
}

double leaf_of(const IndexConfig& config, float priority) {
  const Kind& kind = kind_of(config.sampling);
  return kind.masses_of == nullptr ? 1.0 : mass_of(kind, config.priority_exponent, priority);
}

double sampling_leaf(const IndexConfig& config, const Standing& standing) {
  return leaf_at(kind_of(config.sampling), config.priority_exponent, standing);
}

double removal_leaf(const IndexConfig& config, const Standing& standing) {
  return leaf_at(kind_of(config.removal), config.removal_exponent, standing);
}

bool draws_as_it_removes(const IndexConfig& config) {
  return kind_of(config.sampling).has_priorities && kind_of(config.removal).leaf == LeafKind::kPriority;
}

float priority_of_sampling(const IndexConfig& config, double exponent, double leaf) {
  const Kind& kind = kind_of(config.sampling);
  if (!kind.has_priorities) return std::numeric_limits<float>::quiet_NaN();
  if (kind.leaf == LeafKind::kPriority) return standing_of(kind, leaf).priority;
  if (kind.masses_of == &powers) return priority_of_mass(exponent, leaf);
  return leaf <= kLeastMass ? 0.0f : static_cast<float>(leaf);
}

float priority_of_removal(const IndexConfig& config, double removal_leaf) {
  const Kind& kind = kind_of(config.removal);
  if (kind.leaf == LeafKind::kPriority) return standing_of(kind, removal_leaf).priority;
  if (!kind.has_priorities) return std::numeric_limits<float>::quiet_NaN();
  return priority_of_mass(config.removal_exponent, removal_leaf);
}

bool has_exponent(const IndexConfig& config) {
  const Kind& kind = kind_of(config.sampling);
  return kind.masses_of == &powers && kind.has_priorities;
}

void raise_masses(double from, double to, double* masses, size_t count) {
  constexpr size_t kSome = 256;
  float priorities[kSome];
  double rooted[kSome];
  for (size_t begin = 0; begin < count; begin += kSome) {
    const size_t size = std::min(kSome, count - begin);
    if (from == 1.0) {
      std::copy_n(masses + begin, size, rooted);
    } else {
      powers_of(masses + begin, size, 1.0, 1.0 / from, rooted);
    }
    for (size_t i = 0; i < size; ++i) {  // a mass above 0 has a priority above 0, even if the root rounds to 0
      const double least = masses[begin + i] > 0.0 ? std::numeric_limits<float>::denorm_min() : 0.0;
      priorities[i] =
          static_cast<float>(std::clamp(rooted[i], least, static_cast<double>(std::numeric_limits<float>::max())));
    }
    powers(to, priorities, size, masses + begin);
  }
}

double sampling_leaf_of(const IndexConfig& config, double removal_leaf) {
  double leaf = 0.0;
  sampling_leaves_of(config, &removal_leaf, 1, &leaf);
  return leaf;
}

void sampling_leaves_of(const IndexConfig& config, const double* removal_leaves, size_t count, double* leaves) {
  const Kind& draws = kind_of(config.sampling);
  const Kind& removes = kind_of(config.removal);
  if (draws.leaf != LeafKind::kMass) {
    for (size_t i = 0; i < count; ++i) leaves[i] = sampling_leaf(config, standing_of(removes, removal_leaves[i]));
    return;
  }
  constexpr size_t kSome = 64;
  float priorities[kSome];
  for (size_t begin = 0; begin < count; begin += kSome) {
    const size_t size = std::min(kSome, count - begin);
    for (size_t i = 0; i < size; ++i) priorities[i] = standing_of(removes, removal_leaves[begin + i]).priority;
    draws.masses_of(config.priority_exponent, priorities, size, leaves + begin);
  }
}

}  // namespace relive
