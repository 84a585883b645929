#include "relive/read/ranked.hpp"

#include <algorithm>
#include <cmath>

#include "relive/read/draw.hpp"
#include "relive/words/testing.hpp"

namespace relive {

const RankLaw& RankLaws::of(double exponent) {
  for (const auto& law : laws_)
    if (law->exponent() == exponent) return *law;
  if (laws_.size() == kMost) laws_.erase(laws_.begin());
  laws_.push_back(std::make_unique<RankLaw>(exponent));
  return *laws_.back();
}

RankedDraw::RankedDraw(const Region& r, uint32_t index, const RankLaw* law)
    : r_(r), leaves_(r, index), map_(r.map(index)), num_items_(leaves_.ranks().size()), law_(law) {
  const IndexConfig& config = leaves_.config();
  if (leaves_.kind().choice == Choice::kOfBest) {
    law_ = nullptr;
    const double share = std::round(config.best_share * static_cast<double>(num_items_));
    const uint64_t wanted = config.best_items != 0 ? config.best_items : static_cast<uint64_t>(share);
    num_best_ = std::min(num_items_, std::max<uint64_t>(1, wanted));
  }
  total_ = sum(num_items_);
}

double RankedDraw::sum(uint64_t rank) const {
  return law_ != nullptr ? law_->sum(rank) : static_cast<double>(std::min(rank, num_best_));
}

double RankedDraw::weight(uint64_t first, uint64_t end) const {
  return law_ != nullptr ? law_->weight(first, end) : sum(end) - sum(first);
}

uint64_t RankedDraw::near(double point) const {
  return law_ != nullptr ? law_->near(point, num_items_) : static_cast<uint64_t>(point);
}

uint64_t RankedDraw::rank_at(double point) const {
  return law_ != nullptr ? law_->rank_at(point, num_items_) : static_cast<uint64_t>(point);
}

// Finds the class of a point. *low and *high receive the sums before the class and after it; on entry they belong to
// the class before.
void RankedDraw::place(double point, Chosen* one, double* low, double* high) const {
  const Ranks& ranks = leaves_.ranks();
  const auto of_rank = [&](uint64_t rank) {
    const uint64_t end = one->of.before + one->of.members;
    one->of = ranks.class_at(rank);
    *low = one->of.before == end ? *high : sum(one->of.before);  // the next class is the usual case
    *high = one->of.ordinal == 0 ? *low : sum(one->of.before + one->of.members);
    return *low <= point && point < *high;
  };
  if (of_rank(near(point)) || of_rank(rank_at(point))) return;
  one->of = {0, 0, 0};  // past the end by rounding, or because a process changes the classes
  *low = *high = 0.0;
}

void RankedDraw::choose(const double* points, size_t count, Chosen* chosen) const {
  const Ranks& ranks = leaves_.ranks();
  double low = 0.0, high = 0.0;  // of the class before
  Chosen one{};
  for (size_t k = 0; k < count; ++k) {
    const double point = points[k];
    if (!(low <= point && point < high)) {
      place(point, &one, &low, &high);
      if (one.of.ordinal != 0) {
        one.probability = (high - low) / (static_cast<double>(one.of.members) * total_);
        ranks.prefetch(one.of);
      }
    }
    if (one.of.ordinal != 0) {
      const double place = (point - low) / (high - low) * static_cast<double>(one.of.members);
      one.position = std::min<uint64_t>(static_cast<uint64_t>(place), one.of.members - 1);
    }
    chosen[k] = one;
  }
  for (size_t k = 0; k < count; ++k) {
    Chosen& c = chosen[k];
    c.slot = c.of.ordinal == 0 ? Leaves::kNoLeaf : ranks.member(c.of, c.position);
    if (c.slot == Leaves::kNoLeaf) continue;
    map_.prefetch(c.slot);
    leaves_.prefetch(c.slot);
  }
}

namespace {

constexpr size_t kFew = 16;  // if fewer than one row in this many is missing, sorting is faster than a pass over strata

// Lists the missing rows in the order of their strata, the best first, so that points of one class are neighbours.
size_t sort_by_stratum(const DrawScratch& scratch, size_t num_items, uint32_t* row_of) {
  const std::vector<uint32_t>& missing = scratch.missing;
  const std::vector<uint32_t>& strata = scratch.strata;
  if (missing.size() < num_items / kFew) {
    std::copy(missing.begin(), missing.end(), row_of);
    std::sort(row_of, row_of + missing.size(), [&](uint32_t a, uint32_t b) { return strata[a] < strata[b]; });
    return missing.size();
  }
  constexpr uint32_t kNone = ~0u;
  std::fill_n(row_of, num_items, kNone);
  for (const uint32_t row : missing) row_of[strata[row]] = row;
  return static_cast<size_t>(std::remove(row_of, row_of + num_items, kNone) - row_of);
}

}  // namespace

uint64_t find_ranked(const Region& r, const DrawRequest& request, const CounterRng& rng, DrawScratch* scratch) {
  const RankedDraw draw(r, request.index, scratch->law);
  Window* const windows = scratch->windows.data();
  uint32_t* const row_of = scratch->by_stratum.data();
  double* const points = scratch->points.data();
  const size_t count = sort_by_stratum(*scratch, request.num_items, row_of);
  const double stratum = draw.total() / static_cast<double>(request.num_items);
  for (size_t k = 0; k < count; ++k) {
    const uint32_t j = scratch->strata[row_of[k]];
    points[k] = (j + rng.uniform(j)) * stratum;
  }
  draw.choose(points, count, scratch->places.data());
  RELIVE_FAIL_POINT(draw_found);
  uint64_t empty = 0;
  for (size_t k = 0; k < count; ++k) {
    const Chosen& one = scratch->places[k];
    const uint32_t row = row_of[k];
    Window& w = windows[row];
    w.slot = one.slot;
    w.row = row;
    w.word = draw.look(one);
    w.mass = one.probability * draw.total();
    w.ok = w.word != 0;
    if (!w.ok) {
      ++empty;
      continue;
    }
    request.keys[row] = r.key_of_leaf(request.index, one.slot, w.word);
    request.probabilities[row] = std::min(1.0, one.probability);
  }
  return empty;
}

}  // namespace relive
