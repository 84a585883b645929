// The rate limiter as arithmetic on counters; waiting is another piece.
//
// Units: items published (inserted), items sampled. The difference d = inserted * samples_per_insert - sampled is kept
// in the corridor [lo, hi], which is spi * min_size -/+ tolerance; its width is the window.
//   can_sample(n): live >= min_size  and  d - n >= lo
//   can_insert(n): live + n <= min_size  or  d + n * spi <= hi  or  (live < min_size and n * spi <= window)
// The last clause: inserts of 32 into min_size 100 stand at 96, where no draw passes yet and the 32 more may be worth
// more than the tolerance. Without it nobody would ever move; with it d exceeds hi by less than a window, once: rows that
// other writers have reserved count as live, too.
// kMinSize knows no corridor: can_sample is live >= min_size, can_insert is always true.
// kQueue is that corridor over other counts: of what is there, not of what ever came. inserted is live, sampled is 0,
// samples_per_insert 1, [lo, hi] is [0, max_size]: a draw of n asks for n items, an insert for room for n. min_size is
// 0: there is no first fill, in which writers would be let in beside what others have reserved.
// kStalenessBudget bounds inserts alone, by the policy version: inserted is what was ever drawn, and what lives and was
// not, and hi is (eta + version + 1) x items_per_version. at_version() makes it of the version; lo is -infinity.
//
// Owner: what the table was made with lies in IndexConfig and never changes; the present one in a LimiterCell
// (limiter_cell.hpp), which anybody reads and who holds the table lock writes (rule P1). Locking: none here; who acts
// upon an answer holds the table lock, who waits asks without it and asks again under it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace relive {

struct LimiterConfig {
  static constexpr uint32_t kMinSize = 0;
  static constexpr uint32_t kSamplesPerInsert = 1;
  static constexpr uint32_t kQueue = 2;
  static constexpr uint32_t kStalenessBudget = 3;

  uint32_t kind;
  uint32_t pad;
  int64_t min_size;
  double samples_per_insert;
  double lo;
  double hi;
  double tolerance;  // kSamplesPerInsert: half the window
  double eta;        // kStalenessBudget, as the next one
  double items_per_version;
};
static_assert(sizeof(LimiterConfig) == 64 && std::is_trivially_copyable_v<LimiterConfig>, "lies in the region");

// What a limiter counts: items that live (and wait to), items inserted, items sampled, as its kind has it.
struct LimiterCounts {
  int64_t live;
  int64_t inserted;
  int64_t sampled;
};

inline LimiterConfig make_min_size(int64_t min_size) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {LimiterConfig::kMinSize, 0, min_size, 0.0, -kInfinity, kInfinity, 0.0, 0.0, 0.0};
}

// tolerance: half the window, in samples. NaN or negative: the default, the larger of 0.1 * spi * min_size and 1024.
inline LimiterConfig make_samples_per_insert(double samples_per_insert, int64_t min_size, double tolerance) {
  const double middle = samples_per_insert * static_cast<double>(min_size);
  if (!(tolerance >= 0.0)) tolerance = std::fmax(0.1 * middle, 1024.0);
  return {LimiterConfig::kSamplesPerInsert,
          0,
          min_size,
          samples_per_insert,
          middle - tolerance,
          middle + tolerance,
          tolerance,
          0.0,
          0.0};
}

inline LimiterConfig make_queue(int64_t max_size) {
  return {LimiterConfig::kQueue, 0, 0, 1.0, 0.0, static_cast<double>(max_size), 0.0, 0.0, 0.0};
}

// Until at_version() says of which: of version 0.
inline LimiterConfig make_staleness_budget(double eta, double items_per_version) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {LimiterConfig::kStalenessBudget,
          0,
          0,
          1.0,
          -kInfinity,
          (eta + 1.0) * items_per_version,
          0.0,
          eta,
          items_per_version};
}

// The limiter at a policy version.
inline LimiterConfig at_version(LimiterConfig config, uint32_t version) {
  if (config.kind == LimiterConfig::kStalenessBudget)
    config.hi = (config.eta + static_cast<double>(version) + 1.0) * config.items_per_version;
  return config;
}

// The limiter as it begins anew in a table where so much was counted: as though the table had been filled by it until
// now, up to min_size at most, and nothing drawn. The totals of a corridor run since the table was made, so it moves.
inline LimiterConfig begun_at(LimiterConfig config, const LimiterCounts& counts) {
  if (config.kind != LimiterConfig::kSamplesPerInsert) return config;
  const double spi = config.samples_per_insert;
  const double filled = static_cast<double>(std::min(counts.live, config.min_size)) * spi;
  const double shift = static_cast<double>(counts.inserted) * spi - static_cast<double>(counts.sampled) - filled;
  config.lo += shift;
  config.hi += shift;
  return config;
}

// Whether draws wait for more than live items, and whether inserts wait at all.
inline bool paces_draws(const LimiterConfig& config) {
  return config.kind == LimiterConfig::kSamplesPerInsert || config.kind == LimiterConfig::kQueue;
}
inline bool paces_inserts(const LimiterConfig& config) { return config.kind != LimiterConfig::kMinSize; }

// Width of the corridor in samples; infinite for kMinSize and kStalenessBudget.
inline double window(const LimiterConfig& config) { return config.hi - config.lo; }

// live: published items that can be drawn now; inserted, sampled: totals since creation, in flight included.
inline bool can_sample(const LimiterConfig& config, int64_t live, int64_t inserted, int64_t sampled, int64_t n) {
  if (live < config.min_size) return false;
  if (config.kind == LimiterConfig::kMinSize) return true;
  const double difference = static_cast<double>(inserted) * config.samples_per_insert - static_cast<double>(sampled);
  return difference - static_cast<double>(n) >= config.lo;
}

inline bool can_insert(const LimiterConfig& config, int64_t live, int64_t inserted, int64_t sampled, int64_t n) {
  if (config.kind == LimiterConfig::kMinSize || live + n <= config.min_size) return true;
  if (live < config.min_size && static_cast<double>(n) * config.samples_per_insert <= window(config)) return true;
  return static_cast<double>(inserted + n) * config.samples_per_insert - static_cast<double>(sampled) <= config.hi;
}

// The most items that can_insert lets in now, at most `most`: each of its clauses is a bound on n.
inline int64_t most_insertable(const LimiterConfig& config, int64_t live, int64_t inserted, int64_t sampled,
                               int64_t most) {
  if (can_insert(config, live, inserted, sampled, most)) return most;
  const double difference = static_cast<double>(inserted) * config.samples_per_insert - static_cast<double>(sampled);
  const auto worth = [&](double samples) {
    const double items = std::floor(samples / config.samples_per_insert);
    return static_cast<int64_t>(std::fmin(std::fmax(items, 0.0), static_cast<double>(most)));
  };
  int64_t n = std::max(config.min_size - live, worth(config.hi - difference));
  if (live < config.min_size) n = std::max(n, worth(window(config)));
  n = std::clamp<int64_t>(n, 0, most);
  while (n > 0 && !can_insert(config, live, inserted, sampled, n)) --n;  // what the division rounded up
  return n;
}

inline bool can_sample(const LimiterConfig& config, const LimiterCounts& counts, int64_t n) {
  return can_sample(config, counts.live, counts.inserted, counts.sampled, n);
}
inline bool can_insert(const LimiterConfig& config, const LimiterCounts& counts, int64_t n) {
  return can_insert(config, counts.live, counts.inserted, counts.sampled, n);
}
inline int64_t most_insertable(const LimiterConfig& config, const LimiterCounts& counts, int64_t most) {
  return most_insertable(config, counts.live, counts.inserted, counts.sampled, most);
}

// A draw passes once d >= lo + n, and writers stop at d = hi: no draw larger than the window ever passes.
inline bool sample_can_ever_pass(const LimiterConfig& config, int64_t n) {
  return static_cast<double>(n) <= window(config);
}

// Beyond the first fill an insert passes once d <= hi - n * spi, and samplers stop at d = lo: no insert worth more
// samples than the window ever passes. Ask can_insert first: what still fits the first fill (live + n <= min_size)
// passes whatever its size.
inline bool insert_can_ever_pass(const LimiterConfig& config, int64_t n) {
  return config.kind == LimiterConfig::kMinSize || static_cast<double>(n) * config.samples_per_insert <= window(config);
}

// True where writers that only insert `insert_size` at a time and samplers that only draw `draw_size` can never block
// each other for good: both wait while hi - insert_size * spi < d < lo + draw_size, which is empty exactly if the two
// fit the window together. What a version's budget leaves must be let in to its last item, for draws may ask for all of
// it before the next version comes: more than one item at a time need not fit.
inline bool always_moves(const LimiterConfig& config, int64_t insert_size, int64_t draw_size) {
  if (config.kind == LimiterConfig::kStalenessBudget) return insert_size <= 1;
  return config.kind == LimiterConfig::kMinSize ||
         static_cast<double>(insert_size) * config.samples_per_insert + static_cast<double>(draw_size) <=
             window(config);
}

// True where a draw of n and writers that insert as few as one item at a time can never block each other for good: a
// draw, unlike a block of rows, can not be had in parts. Where samples_per_insert is whole so is d, and
// hi - spi < d < lo + n is empty of whole numbers a little earlier.
inline bool draw_always_moves(const LimiterConfig& config, int64_t n) {
  const double spi = config.samples_per_insert;
  if (!paces_draws(config) || spi != std::floor(spi)) return always_moves(config, 1, n);
  return static_cast<double>(n) + std::ceil(config.lo) <= std::floor(config.hi) - spi + 1.0;
}

}  // namespace relive
