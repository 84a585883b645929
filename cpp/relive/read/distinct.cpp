#include "relive/read/distinct.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "relive/read/sieve.hpp"
#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr uint64_t kRace = uint64_t{1} << 41;  // random numbers from here on are of races
constexpr uint64_t kLooks = 4096, kLooksARow = 16, kLeavesALook = 16;
// Each round of looks passes over the whole batch. So many leaves for each square of its size are the quicker ones.
constexpr double kLeavesASquare = 1024.0;

struct Runner {
  double time;
  Chosen place;
};

// The first ones to come, of any number that run.
class FirstOnes final {
 public:
  explicit FirstOnes(size_t wanted) : wanted_(wanted) {}

  // rate above 0; chance in (0, 1].
  void run(double rate, double chance, const Chosen& place) {
    // -log(chance) is at least 1 - chance: most of those that come too late cost no logarithm.
    if (1.0 - chance >= rate * too_late_) return;
    const double time = -std::log(chance) / rate;
    if (time >= too_late_) return;
    runners_.push_back({time, place});
    if (runners_.size() == 2 * wanted_) drop_late();
  }

  // In no order: each of them goes to a row at random.
  const std::vector<Runner>& all() {
    if (runners_.size() > wanted_) drop_late();
    return runners_;
  }

 private:
  // What stays is as much as what goes, so it costs each of them little.
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

// Word before leaf (rule G2). Here a mass that is next to nothing of the total may be what was meant: what is heavier is
// in the batch. False where it is so because the heavier ones went, and the total is not theirs any more.
bool look_at_runners(const Sieve& sieve, Wave* wave) {
  if (sieve.leaves().is_ranked()) {
    sieve.look_at_chosen(wave);
    return true;
  }
  const ItemMap& map = sieve.leaves().map();
  const double least = least_probability(sieve.leaves()) * sieve.total();
  bool is_light = false;
  wave->num_items = 0;
  for (size_t k = 0; k < wave->num_points; ++k) {
    const uint64_t slot = wave->drawn[k];
    RELIVE_FAIL_POINT(draw_found);
    const uint64_t word = map.word(slot);
    RELIVE_FAIL_POINT(draw_word);
    const double mass = sieve.leaves().mass(slot);
    if (!Leaves::is_mass(mass) || !Region::is_used(word)) continue;
    sieve.add(slot, word, mass, wave);
    is_light |= mass < least;
  }
  return !is_light || sieve.leaves().total() > 0.5 * sieve.total();
}

// All leaves that the batch does not have; where there is a condition, those that pass it, looked at some at a time.
class Race final {
 public:
  Race(const Sieve& sieve, const CounterRng& rng, size_t wanted, DrawScratch* scratch)
      : sieve_(sieve), rng_(rng), scratch_(scratch), first_ones_(wanted) {}

  const std::vector<Runner>& run() {
    const Leaves& leaves = sieve_.leaves();
    if (leaves.is_ranked()) {
      sieve_.ranked().each([this](const Chosen& place) { begin(place.probability, place); });
    } else {
      for (uint64_t slot = 0; slot < sieve_.num_leaves(); ++slot)
        if (const double mass = leaves.mass(slot); Leaves::is_mass(mass)) begin(mass, Chosen{{}, 0, slot, 0.0});
    }
    if (wave_.num_points != 0) sift();
    return first_ones_.all();
  }

 private:
  void begin(double rate, const Chosen& place) {
    if (scratch_->has.has(place.slot)) return;
    if (!sieve_.has_condition()) return start(rate, place);
    const size_t k = wave_.num_points++;
    wave_.points[k] = rate;
    wave_.drawn[k] = place.slot;
    wave_.places[k] = place;
    if (wave_.num_points == kWave) sift();
  }

  void start(double rate, const Chosen& place) { first_ones_.run(rate, 1.0 - rng_.uniform(kRace + place.slot), place); }

  void sift() {
    look_at_runners(sieve_, &wave_);
    sieve_.test(&wave_);
    size_t from = 0;
    for (size_t k = 0; k < wave_.num_items; ++k, ++from) {
      while (wave_.drawn[from] != wave_.items[k].slot) ++from;  // items are points that led to one, in their order
      if (!wave_.items[k].is_there) continue;
      ++scratch_->looks.looked;
      if (!wave_.passes[k]) continue;
      ++scratch_->looks.passed;
      start(wave_.points[from], wave_.places[from]);
    }
    wave_.num_points = 0;
  }

  const Sieve& sieve_;
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
  if (config.max_items != 0) bound(config.max_items, "the items that the index may hold");
  if ((config.traits & kIsLatest) != 0) bound(config.latest, "last of Fresh(last=)");
  if (limiter.kind == LimiterConfig::kSamplesPerInsert)
    bound(static_cast<uint64_t>(limiter.min_size), "min_size of SamplesPerInsert, up to which writers never wait");
  if (limiter.kind == LimiterConfig::kQueue) bound(static_cast<uint64_t>(limiter.hi), "max_size of Queue");
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

void race(const Sieve& sieve, const CounterRng& rng, const std::vector<uint32_t>& rows, size_t* found,
          DrawScratch* scratch) {
  scratch->looks.has_raced = true;
  Race race(sieve, rng, rows.size() - *found, scratch);
  const std::vector<Runner>& chosen = race.run();
  // Where there is a condition what is missing is rare: more items need not bring more that pass.
  scratch->looks.is_short = !sieve.has_condition() && chosen.size() < rows.size() - *found;
  Wave wave;
  for (size_t begin = 0; begin < chosen.size(); begin += kWave) {
    wave.num_points = std::min(kWave, chosen.size() - begin);
    for (size_t k = 0; k < wave.num_points; ++k) {
      wave.points[k] = 0.0;
      wave.drawn[k] = chosen[begin + k].place.slot;
      wave.places[k] = chosen[begin + k].place;
    }
    if (!look_at_runners(sieve, &wave)) {  // drawn anew, of the total that there is now
      scratch->looks.has_raced &= !sieve.has_condition();
      return;
    }
    sieve.test(&wave);
    for (size_t k = 0; k < wave.num_items; ++k) {
      const Candidate& one = wave.items[k];
      if (!one.is_there || !wave.passes[k]) continue;
      const double probability = std::max(one.mass / sieve.total(), std::numeric_limits<double>::min());
      if (!scratch->has.add(one.slot)) continue;
      ++scratch->looks.brought;
      sieve.keep(one, rows[(*found)++], probability, scratch);
    }
  }
}

}  // namespace relive
