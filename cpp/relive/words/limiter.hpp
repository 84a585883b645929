// The rate limiter as arithmetic on counters; waiting is another piece.
//
// Units: items published (inserted), items sampled. The difference d = inserted * samples_per_insert - sampled is kept
// in the corridor [lo, hi], which is spi * min_size -/+ tolerance; its width is the window.
//   can_sample(n): live >= min_size  and  d - n >= lo
//   can_insert(n): live + n <= min_size  or  d + n * spi <= hi  or  (live < min_size and n * spi <= window)
// The last clause: inserts of 32 into min_size 100 stand at 96, where no draw passes yet and the 32 more may be worth
// more than the tolerance. Without it nobody would ever move; with it d exceeds hi by less than a window, once.
// kMinSize knows no corridor: can_sample is live >= min_size, can_insert is always true.
//
// Owner: the config lies in the region and never changes. Locking: none here; the caller holds the table lock.
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

  uint32_t kind;
  uint32_t pad;
  int64_t min_size;
  double samples_per_insert;
  double lo;
  double hi;
};
static_assert(sizeof(LimiterConfig) == 40 && std::is_trivially_copyable_v<LimiterConfig>, "lies in the region");

inline LimiterConfig make_min_size(int64_t min_size) {
  return {LimiterConfig::kMinSize,
          0,
          min_size,
          0.0,
          -std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::infinity()};
}

// tolerance: half the window, in samples. NaN or negative: the default, the larger of 0.1 * spi * min_size and 1024.
inline LimiterConfig make_samples_per_insert(double samples_per_insert, int64_t min_size, double tolerance) {
  const double middle = samples_per_insert * static_cast<double>(min_size);
  if (!(tolerance >= 0.0)) tolerance = std::fmax(0.1 * middle, 1024.0);
  return {LimiterConfig::kSamplesPerInsert, 0, min_size, samples_per_insert, middle - tolerance, middle + tolerance};
}

// Width of the corridor in samples; infinite for kMinSize.
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
// fit the window together.
inline bool always_moves(const LimiterConfig& config, int64_t insert_size, int64_t draw_size) {
  return config.kind == LimiterConfig::kMinSize ||
         static_cast<double>(insert_size) * config.samples_per_insert + static_cast<double>(draw_size) <=
             window(config);
}

// True where a draw of n and writers that insert as few as one item at a time can never block each other for good: a
// draw, unlike a block of rows, can not be had in parts. Where samples_per_insert is whole so is d, and
// hi - spi < d < lo + n is empty of whole numbers a little earlier.
inline bool draw_always_moves(const LimiterConfig& config, int64_t n) {
  const double spi = config.samples_per_insert;
  if (config.kind == LimiterConfig::kMinSize || spi != std::floor(spi)) return always_moves(config, 1, n);
  return static_cast<double>(n) + std::ceil(config.lo) <= std::floor(config.hi) - spi + 1.0;
}

}  // namespace relive
