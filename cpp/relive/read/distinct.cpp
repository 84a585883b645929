#include "relive/read/distinct.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "relive/read/candidates.hpp"
#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr uint64_t kRace = uint64_t{1} << 41;  // random numbers from here on are for races
constexpr uint64_t kLooks = 4096, kLooksARow = 16, kLeavesALook = 16;
// ^Each round of looks reads the whole batch. If the batch is this large, relative to the number of leaves, a race is
// faster.
constexpr double kLeavesASquare = 1024.0;

struct Runner {
  double time;
  Chosen place;
};

// Keeps the first `wanted` runners of any number.
class FirstOnes final {
 public:
  explicit FirstOnes(size_t wanted) : wanted_(wanted) {}

  // rate above 0; chance in (0, 1].
  void run(double rate, double chance, const Chosen& place) {
    // -log(chance) is at least 1 - chance, so most late runners cost no logarithm.
    if (1.0 - chance >= rate * too_late_) return;
    const double time = -std::log(chance) / rate;
    if (time >= too_late_) return;
    runners_.push_back({time, place});
    if (runners_.size() == 2 * wanted_) drop_late();
  }

  // In no order: each runner goes to a random row.
  const std::vector<Runner>& all() {
    if (runners_.size() > wanted_) drop_late();
    return runners_;
  }

 private:
  // Half of the runners stay and half go, so the selection costs each of them little.
  void drop_late() {
    const auto last = runners_.begin() + static_cast<std::ptrdiff_t>(wanted_ - 1);
    std::nth_element(runners_.begin(), last, runners_.end(),
                     [](const Runner& a, const Runner& b) { return a.time < b.time; });
    too_late_ = last->time;
    runners_.resize(wanted_);
  }

  const size_t wanted_;
  double too_late_ = std::numeric_limits<double>::infinity();
  std::vector<Runner> runners_;
};

// Reads the word before the leaf (rule G2). In a race a mass that is a tiny part of the total is valid, because the
// heavier items are in the batch. Returns false if such a mass came out while heavier items ended, so that the total is
// outdated.
bool look_at_runners(const CandidateFilter& filter, Wave* wave) {
  if (filter.leaves().is_ranked()) {
    filter.look_at_chosen(wave);
    return true;
  }
  const ItemMap& map = filter.leaves().map();
  const double least = least_probability(filter.leaves()) * filter.total();
  bool is_light = false;
  wave->num_items = 0;
  for (size_t k = 0; k < wave->num_points; ++k) {
    const uint64_t slot = wave->drawn[k];
    RELIVE_FAIL_POINT(draw_found);
    const uint64_t word = map.word(slot);
    RELIVE_FAIL_POINT(draw_word);
    const double mass = filter.leaves().mass(slot);
    if (!Leaves::is_mass(mass) || !Region::is_used(word)) continue;
    filter.add(slot, word, mass, wave);
    is_light |= mass < least;
  }
  return !is_light || filter.leaves().total() > 0.5 * filter.total();
}

// A race of all leaves that are not in the batch; with a condition, of those that pass, tested in blocks.
class Race final {
 public:
  Race(const CandidateFilter& filter, const CounterRng& rng, size_t wanted, DrawScratch* scratch)
      : filter_(filter), rng_(rng), scratch_(scratch), first_ones_(wanted) {}

  const std::vector<Runner>& run() {
    const Leaves& leaves = filter_.leaves();
    if (leaves.is_ranked()) {
      filter_.ranked().each([this](const Chosen& place) { begin(place.probability, place); });
    } else {
      for (uint64_t slot = 0; slot < filter_.num_leaves(); ++slot)
        if (const double mass = leaves.mass(slot); Leaves::is_mass(mass)) begin(mass, Chosen{{}, 0, slot, 0.0});
    }
    if (wave_.num_points != 0) sift();
    return first_ones_.all();
  }

 private:
  void begin(double rate, const Chosen& place) {
    if (scratch_->has.has(place.slot)) return;
    if (!filter_.has_condition()) return start(rate, place);
    const size_t k = wave_.num_points++;
    wave_.points[k] = rate;
    wave_.drawn[k] = place.slot;
    wave_.places[k] = place;
    if (wave_.num_points == kWave) sift();
  }

  void start(double rate, const Chosen& place) { first_ones_.run(rate, 1.0 - rng_.uniform(kRace + place.slot), place); }

  void sift() {
    look_at_runners(filter_, &wave_);
    filter_.test(&wave_);
    size_t from = 0;
    for (size_t k = 0; k < wave_.num_items; ++k, ++from) {
      while (wave_.drawn[from] != wave_.items[k].slot) ++from;  // items are a subsequence of the points
      if (!wave_.items[k].is_there) continue;
      ++scratch_->looks.looked;
      if (!wave_.passes[k]) continue;
      ++scratch_->looks.passed;
      start(wave_.points[from], wave_.places[from]);
    }
    wave_.num_points = 0;
  }

  const CandidateFilter& filter_;
  const CounterRng& rng_;
  DrawScratch* const scratch_;
  FirstOnes first_ones_;
  Wave wave_;
};

}  // namespace

MostDistinct most_distinct(const Region& r, uint32_t index, const LimiterConfig& limiter) {
  const IndexConfig& config = r.header->indexes[index];
  MostDistinct most{std::min(r.geometry->capacity, r.map(index).num_leaves), "the table's capacity"};
  const auto bound = [&](uint64_t num_items, const char* by) {
    if (num_items <= most.num_items) most = {num_items, by};
  };
  if (config.max_items != 0) bound(config.max_items, "the items that the index may have");
  if ((config.traits & kIsLatest) != 0) bound(config.latest, "last of Fresh(last=)");
  if (limiter.kind == LimiterConfig::kSamplesPerInsert)
    bound(static_cast<uint64_t>(limiter.min_size), "min_size of SamplesPerInsert, up to which writers never wait");
  if (limiter.kind == LimiterConfig::kQueue) bound(static_cast<uint64_t>(limiter.hi), "max_size of Queue");
  // Later versions may find more items, but there is no later version if the first one cannot draw.
  if (limiter.kind == LimiterConfig::kStalenessBudget)
    bound(static_cast<uint64_t>(whole_budget(limiter)), "(eta + 1) x items_per_version of StalenessBudget");
  // Items that share the last class may be more. Their number is not known before.
  if (config.best_items != 0) bound(config.best_items, "k of TopK");
  if (config.best_share > 0.0) {
    const double share = std::floor(config.best_share * static_cast<double>(most.num_items) + 0.5);
    bound(static_cast<uint64_t>(std::fmax(share, 1.0)), "the share k of TopK");
  }
  return most;
}

void BatchSlots::begin(size_t num_items) { slots_.assign(std::bit_ceil(2 * num_items + 1), 0); }

size_t BatchSlots::place_of(uint64_t slot) const {
  const size_t mask = slots_.size() - 1;
  size_t at = (slot * SplitMix64::kGolden >> 32) & mask;
  while (slots_[at] != 0 && slots_[at] != slot + 1) at = (at + 1) & mask;
  return at;
}

bool BatchSlots::has(uint64_t slot) const { return slots_[place_of(slot)] != 0; }

bool BatchSlots::add(uint64_t slot) {
  uint64_t& place = slots_[place_of(slot)];
  if (place != 0) return false;
  place = slot + 1;
  return true;
}

uint64_t looks_before_race(const Region& r, uint32_t index, size_t num_items) {
  const uint64_t num_leaves = r.map(index).num_leaves;
  const auto n = static_cast<double>(num_items);
  if (n > kLooks && n * n > kLeavesASquare * static_cast<double>(num_leaves)) return 0;
  return kLooks + kLooksARow * num_items + num_leaves / kLeavesALook;
}

void race(const CandidateFilter& filter, const CounterRng& rng, const std::vector<uint32_t>& rows, size_t* found,
          DrawScratch* scratch) {
  scratch->looks.has_raced = true;
  Race race(filter, rng, rows.size() - *found, scratch);
  const std::vector<Runner>& chosen = race.run();
  // With a condition, missing items are rare instead: more items need not bring more that pass.
  scratch->looks.is_short = !filter.has_condition() && chosen.size() < rows.size() - *found;
  Wave wave;
  for (size_t begin = 0; begin < chosen.size(); begin += kWave) {
    wave.num_points = std::min(kWave, chosen.size() - begin);
    for (size_t k = 0; k < wave.num_points; ++k) {
      wave.points[k] = 0.0;
      wave.drawn[k] = chosen[begin + k].place.slot;
      wave.places[k] = chosen[begin + k].place;
    }
    if (!look_at_runners(filter, &wave)) {  // drawn again from the present total
      scratch->looks.has_raced &= !filter.has_condition();
      return;
    }
    filter.test(&wave);
    for (size_t k = 0; k < wave.num_items; ++k) {
      const Candidate& one = wave.items[k];
      if (!one.is_there || !wave.passes[k]) continue;
      const double probability = std::max(one.mass / filter.total(), std::numeric_limits<double>::min());
      if (!scratch->has.add(one.slot)) continue;
      ++scratch->looks.brought;
      filter.keep(one, rows[(*found)++], probability, scratch);
    }
  }
}

}  // namespace relive
