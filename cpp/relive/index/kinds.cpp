#include "relive/index/kinds.hpp"

#include <algorithm>
#include <iterator>

#include "relive/words/power.hpp"

namespace relive {
namespace {

void ones(const IndexConfig&, const float*, size_t count, double* leaves) { std::fill(leaves, leaves + count, 1.0); }

void as_given(const IndexConfig&, const float* priorities, size_t count, double* leaves) {
  std::copy(priorities, priorities + count, leaves);
}

// mass = priority ^ priority_exponent.
void powers(const IndexConfig& config, const float* priorities, size_t count, double* leaves) {
  if (config.priority_exponent == 1.0) return as_given(config, priorities, count, leaves);
  powers_of(priorities, count, 1.0, config.priority_exponent, leaves);
}

constexpr Kind kSamplers[] = {
    {"uniform", LeafKind::kMass, Reduction::kSum, Choice::kByMass, false, &ones},
    {"prioritized", LeafKind::kMass, Reduction::kSum, Choice::kByMass, true, &powers},
#ifdef RELIVE_TESTING
    {"highest", LeafKind::kMass, Reduction::kMax, Choice::kBest, true, &as_given},
    {"lowest", LeafKind::kMass, Reduction::kMin, Choice::kBest, true, &as_given},
#endif
};

// Steps go in the order of their pages' tickets (rule D3): the age ring is all that it needs, no leaf of its own.
constexpr Kind kRemovers[] = {
    {"fifo", LeafKind::kTicket, Reduction::kMin, Choice::kBest, false, nullptr},
};

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
  config->reduction = kind_of(config->sampling).reduction;
  return {};
}

double leaf_of(const IndexConfig& config, float priority) {
  double leaf;
  kind_of(config.sampling).leaves_of(config, &priority, 1, &leaf);
  return leaf;
}

}  // namespace relive
