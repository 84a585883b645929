// The rate limiter as arithmetic on counters. Waiting is elsewhere (table/waiting.hpp).
//
// Units are items: published (inserted), and sampled. The difference d = inserted * samples_per_insert - sampled is
// kept in the corridor [lo, hi], which is spi * min_size -/+ tolerance. The width of the corridor is the window.
//   can_sample(n): live >= min_size  and  d - n >= lo
//   can_insert(n): live + n <= min_size  or  d + n * spi <= hi  or  ((live < min_size or lacks) and n * spi <= window)
// The last clause lets a table fill up. Inserts of 32 items into min_size 100 reach 96, where no draw passes yet, and
// 32 more items may be worth more than the tolerance: without the clause both sides would wait for ever. With it d
// exceeds hi by less than a window, once, because rows that other writers have reserved also count as live. The clause
// also serves a draw that lacks items although d is above hi, because items left before they had all their samples.
//
//   kind              | counts                            | corridor
//   kMinSize          | live                              | none: draws wait for live >= min_size, inserts pass
//   kSamplesPerInsert | inserted, sampled                 | as above
//   kQueue            | inserted: items there; sampled: 0 | [0, max_size]; samples_per_insert 1, min_size 0
//   kStalenessBudget  | ever drawn + there, not drawn yet | lo = -infinity, hi of the version: at_version()
//
// docs/design/protocol-items.md, section 0, has the table of what counts for an item in each state.
//
// Rounding: with samples_per_insert 1.3, both d and the corridor are rounded. A comparison at the edge of the corridor
// passes within that error (rounding()). Otherwise a corridor that fits one draw and one insert exactly could refuse
// both for good.
//
// So in a queue a draw of n waits for n items, and an insert of n for room for n. It has no first fill, in which
// writers would be admitted in spite of the rows that other writers have reserved. kStalenessBudget bounds inserts
// only: hi = (eta + version + 1) x items_per_version.
//
// Owner:   the limiter that a table was made with lies in IndexConfig and never changes; the present one lies in a
//          LimiterCell (limiter_cell.hpp, rule P1).
// Locking: none here. A caller that acts on an answer asks under the table lock; a caller that waits may ask without
//          the lock, and asks again under it.
// Cost:    O(1).
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

// The counts of a limiter, as its kind defines them: items that live (or wait to be published), items inserted,
// sampled. lacks: a draw found too few items, and none was inserted since.
struct LimiterCounts {
  int64_t live;
  int64_t inserted;
  int64_t sampled;
  bool lacks = false;
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

// The budget of version 0; at_version() gives that of another version.
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

// The limiter at a policy version, counted from the version at which the budget began.
inline LimiterConfig at_version(LimiterConfig config, int64_t version) {
  if (config.kind == LimiterConfig::kStalenessBudget)
    config.hi = (config.eta + static_cast<double>(version) + 1.0) * config.items_per_version;
  return config;
}

// A limiter that replaces another one in a table with these counts. It begins as if the live items, at most min_size of
// them, had just been inserted and none had been drawn. The totals run since the table was made, so the corridor is
// moved.
inline LimiterConfig begun_at(LimiterConfig config, const LimiterCounts& counts) {
  if (config.kind != LimiterConfig::kSamplesPerInsert) return config;
  const double spi = config.samples_per_insert;
  const double filled = static_cast<double>(std::min(counts.live, config.min_size)) * spi;
  const double shift = static_cast<double>(counts.inserted) * spi - static_cast<double>(counts.sampled) - filled;
  config.lo += shift;
  config.hi += shift;
  return config;
}

// Whether draws wait for more than min_size live items; whether inserts wait at all.
inline bool paces_draws(const LimiterConfig& config) {
  return config.kind == LimiterConfig::kSamplesPerInsert || config.kind == LimiterConfig::kQueue;
}
inline bool paces_inserts(const LimiterConfig& config) { return config.kind != LimiterConfig::kMinSize; }

// kStalenessBudget: the most items that are ever admitted and not drawn. Infinite for the others.
inline double whole_budget(const LimiterConfig& config) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return config.kind == LimiterConfig::kStalenessBudget ? (config.eta + 1.0) * config.items_per_version : kInfinity;
}

// Width of the corridor in samples; infinite for kMinSize and kStalenessBudget.
inline double window(const LimiterConfig& config) { return config.hi - config.lo; }

// kSamplesPerInsert: the most by which lo, hi and d may be wrong, at this many items inserted. 0 for the others, which
// compare whole numbers.
inline double rounding(const LimiterConfig& config, int64_t inserted) {
  if (config.kind != LimiterConfig::kSamplesPerInsert) return 0.0;
  const double largest = std::fabs(config.lo) + std::fabs(config.hi) +
                         std::fabs(static_cast<double>(inserted)) * config.samples_per_insert;
  return 4.0 * std::numeric_limits<double>::epsilon() * largest;
}

// Whether so many samples fit the corridor.
inline bool fits_window(const LimiterConfig& config, double samples) {
  return samples <= window(config) + rounding(config, 0);
}

inline double difference(const LimiterConfig& config, const LimiterCounts& counts) {
  return static_cast<double>(counts.inserted) * config.samples_per_insert - static_cast<double>(counts.sampled);
}

inline bool can_sample(const LimiterConfig& config, const LimiterCounts& counts, int64_t n) {
  if (counts.live < config.min_size) return false;
  return config.kind == LimiterConfig::kMinSize ||
         difference(config, counts) - static_cast<double>(n) >= config.lo - rounding(config, counts.inserted);
}

inline bool can_insert(const LimiterConfig& config, const LimiterCounts& counts, int64_t n) {
  if (config.kind == LimiterConfig::kMinSize || counts.live + n <= config.min_size) return true;
  const double worth = static_cast<double>(n) * config.samples_per_insert;
  if ((counts.live < config.min_size || counts.lacks) && fits_window(config, worth)) return true;
  return difference(config, counts) + worth <= config.hi + rounding(config, counts.inserted);
}

// The most items, up to `most`, that can_insert() admits now: each clause of can_insert() is a bound on n.
inline int64_t most_insertable(const LimiterConfig& config, const LimiterCounts& counts, int64_t most) {
  if (can_insert(config, counts, most)) return most;
  const double error = rounding(config, counts.inserted);
  const auto worth = [&](double samples) {
    const double items = std::floor((samples + error) / config.samples_per_insert);
    return static_cast<int64_t>(std::fmin(std::fmax(items, 0.0), static_cast<double>(most)));
  };
  int64_t n = std::max(config.min_size - counts.live, worth(config.hi - difference(config, counts)));
  if (counts.live < config.min_size || counts.lacks) n = std::max(n, worth(window(config)));
  n = std::clamp<int64_t>(n, 0, most);
  while (n > 0 && !can_insert(config, counts, n)) --n;  // the division may have rounded up
  return n;
}

// A draw passes if d >= lo + n, and writers stop at d = hi: a draw larger than the window never passes.
inline bool sample_can_ever_pass(const LimiterConfig& config, int64_t n) {
  return fits_window(config, static_cast<double>(n));
}

// After the first fill an insert passes if d <= hi - n * spi, and samplers stop at d = lo: an insert worth more samples
// than the window never passes. Ask can_insert() first: an insert that fits the first fill (live + n <= min_size)
// passes at any size.
inline bool insert_can_ever_pass(const LimiterConfig& config, int64_t n) {
  return config.kind == LimiterConfig::kMinSize ||
         fits_window(config, static_cast<double>(n) * config.samples_per_insert);
}

// Whether writers that always insert `insert_size` items and samplers that always draw `draw_size` can never block each
// other for good. Both wait while hi - insert_size * spi < d < lo + draw_size, which is empty exactly if the two fit
// the window together. With kStalenessBudget the last item of a version's budget must be admitted, because draws may
// ask for all of the budget before the next version comes: inserts of more than one item at a time may not fit.
inline bool always_moves(const LimiterConfig& config, int64_t insert_size, int64_t draw_size) {
  if (config.kind == LimiterConfig::kStalenessBudget) return insert_size <= 1;
  return config.kind == LimiterConfig::kMinSize ||
         fits_window(config,
                     static_cast<double>(insert_size) * config.samples_per_insert + static_cast<double>(draw_size));
}

// Whether a draw of n and writers that may insert one item at a time can never block each other for good. A draw cannot
// be divided, as a block of rows can. If samples_per_insert is a whole number so is d, and hi - spi < d < lo + n
// contains no whole number for slightly larger draws.
inline bool draw_always_moves(const LimiterConfig& config, int64_t n) {
  const double spi = config.samples_per_insert;
  if (!paces_draws(config) || spi != std::floor(spi)) return always_moves(config, 1, n);
  const double error = rounding(config, 0);
  return static_cast<double>(n) + std::ceil(config.lo - error) <= std::floor(config.hi + error) - spi + 1.0;
}

}  // namespace relive
