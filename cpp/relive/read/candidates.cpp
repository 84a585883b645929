#include "relive/read/candidates.hpp"

#include <algorithm>
#include <limits>

#include "relive/read/records.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr size_t kResolved = 32;  // windows whose runs fit into the scratch
constexpr double kPastTheEnd = std::numeric_limits<double>::infinity();
static_assert(kWave <= kEvaluatedTogether);

}  // namespace

CandidateFilter::CandidateFilter(const Region& r, const DrawRequest& request, const Where* where, DrawScratch* scratch,
                                 double total)
    : r_(r),
      request_(request),
      where_(where),
      leaves_(r, request.index),
      map_(r.map(request.index)),
      runs_(&scratch->runs),
      total_(total) {
  if (leaves_.is_ranked()) total_ = ranked_.emplace(r, request.index, scratch->law).total();
}

void CandidateFilter::aim(const CounterRng& rng, uint64_t first, size_t count, Wave* wave) const {
  wave->num_points = count;
  for (size_t k = 0; k < count; ++k) {
    wave->points[k] = rng.uniform(first + k) * total_;
    wave->drawn[k] = 0;
  }
  if (ranked_) return ranked_->choose(wave->points, count, wave->places);
  leaves_.descend_to_groups(wave->points, wave->drawn, count);
  if (map_.is_explicit) return ask_for_records(r_, request_.index, wave->drawn, count, Leaves::kGroup);
  for (size_t k = 0; k < count; ++k) {
    const uint64_t page = r_.page_of(wave->drawn[k] * Leaves::kGroup);
    __builtin_prefetch(&r_.words[page]);
    __builtin_prefetch(&r_.frames[page]);
  }
}

void CandidateFilter::add(uint64_t slot, uint64_t word, double mass, Wave* wave) const {
  const size_t k = wave->num_items++;
  wave->items[k] = {slot, word, mass, true};
  if (where_ == nullptr) return;
  wave->subjects[k] = subject_of(r_, request_.index, slot);
  prefetch(r_, where_->reads, wave->subjects[k]);
}

void CandidateFilter::look(Wave* wave) const {
  if (!ranked_) leaves_.descend_to_leaves(wave->points, wave->drawn, wave->num_points);
  look_at_chosen(wave);
}

// Reads the word before the leaf (rule G2).
void CandidateFilter::look_at_chosen(Wave* wave) const {
  wave->num_items = 0;
  if (ranked_) {
    for (size_t k = 0; k < wave->num_points; ++k) {
      const Chosen& one = wave->places[k];
      const uint64_t word = ranked_->look(one);
      if (word != 0) add(one.slot, word, one.probability * total_, wave);
    }
    return;
  }
  const double least = least_probability(leaves_) * total_;
  for (size_t k = 0; k < wave->num_points; ++k) {
    if (wave->points[k] == kPastTheEnd) continue;
    const uint64_t slot = wave->drawn[k];
    double mass = 0.0;
    if (!RELIVE_RULE(G2_word_before_leaf)) mass = leaves_.mass(slot);
    RELIVE_FAIL_POINT(draw_found);
    const uint64_t word = map_.word(slot);
    RELIVE_FAIL_POINT(draw_word);
    if (RELIVE_RULE(G2_word_before_leaf)) mass = leaves_.mass(slot);
    if (Leaves::is_mass(mass) && Region::is_used(word) && mass >= least) add(slot, word, mass, wave);
  }
}

// An item whose leaf has changed would be at a wrong place in the order, so it is skipped.
void CandidateFilter::look_in_order(const std::vector<uint64_t>& taken, size_t* at,
                                    const std::vector<Leaves::Node>& best, Wave* wave) const {
  wave->num_items = 0;
  for (size_t k = 0; k < kWave && *at < best.size(); ++*at) {
    const Leaves::Node& node = best[*at];
    if (std::binary_search(taken.begin(), taken.end(), node.place)) continue;
    ++k;
    RELIVE_FAIL_POINT(draw_found);
    const uint64_t word = map_.word(node.place);
    RELIVE_FAIL_POINT(draw_word);
    const double mass = leaves_.mass(node.place);
    if (Region::is_used(word) && mass == node.value) add(node.place, word, mass, wave);
  }
}

// Finds the number of steps of the windows. An item whose window is no longer whole is not there.
void CandidateFilter::measure(Wave* wave) const {
  Window windows[kResolved];
  uint32_t which[kResolved];
  for (size_t begin = 0; begin < wave->num_items; begin += kResolved) {
    const size_t count = std::min(kResolved, wave->num_items - begin);
    for (size_t k = 0; k < count; ++k) {
      windows[k] = {};
      windows[k].slot = wave->items[begin + k].slot;
      windows[k].word = wave->items[begin + k].word;
      windows[k].ok = true;
      which[k] = static_cast<uint32_t>(k);
    }
    runs_->clear();
    locate(r_, where_->length, windows, which, count);
    resolve(r_, where_->length, windows, which, count, runs_);
    acquire_fence();
    recheck(r_, where_->length, windows, *runs_, which, count);
    for (size_t k = 0; k < count; ++k) {
      wave->items[begin + k].is_there = windows[k].ok;
      wave->subjects[begin + k].num_steps = windows[k].num_steps;
    }
  }
}

void CandidateFilter::test(Wave* wave) const {
  if (where_ == nullptr) {
    std::fill_n(wave->passes, wave->num_items, true);
    return;
  }
  if (where_->predicate.asks_length != 0) measure(wave);
  evaluate(r_, where_->predicate, wave->subjects, wave->num_items, wave->passes);
  RELIVE_FAIL_POINT(where_tested);
  acquire_fence();
  if (!RELIVE_RULE(G4_recheck)) return;
  for (size_t k = 0; k < wave->num_items; ++k) {  // the values belong to the item if its word is the same (rule G4)
    Candidate& one = wave->items[k];
    one.is_there = one.is_there && map_.word(one.slot) >> kStateBits == one.word >> kStateBits;
  }
}

void CandidateFilter::keep(const Candidate& one, uint32_t row, double probability, DrawScratch* scratch) const {
  Window& w = scratch->windows[row];
  w.slot = one.slot;
  w.word = one.word;
  w.mass = one.mass;
  w.row = row;
  w.ok = true;
  request_.keys[row] = r_.key_of_leaf(request_.index, w.slot, w.word);
  request_.probabilities[row] = std::min(1.0, probability);
}

}  // namespace relive
