// The law of rank-based draws (Schaul et al. 2015, section 3.3): rank i, counted from 0 at the best of n items, has the
// weight (i + 1)^-exponent.
//
// Owner:   an object of one process, made once for an exponent. n may differ from call to call.
// Locking: none; it does not change after it was made.
// Cost:    making it takes kExact powers. sum() is O(1). rank_at() searches kExact sums or, beyond them, takes a guess
//          and two sums.
//
// The sums of the first kExact weights are added up. Larger sums use the Euler-Maclaurin formula with two corrections.
// Every derivative of x^-a keeps its sign, so the error is below the first term left out, a(a+1)(a+2)/720 K^-(a+3). For
// K = 1024 and every exponent in [0, 10] that is below 1e-11, while the sum itself is at least 1.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace relive {

class RankLaw final {
 public:
  static constexpr uint64_t kExact = 1024;
  static constexpr double kMaxExponent = 10.0;

  // exponent in [0, kMaxExponent].
  explicit RankLaw(double exponent)
      : exponent_(exponent),
        scale_(std::pow(double{kExact}, -exponent)),
        per_rest_(1.0 / (std::pow(kMiddle, -exponent) * kMiddle)) {
    double sum = 0.0;
    for (uint64_t i = 0; i < kExact; ++i) sums_[i] = sum += std::pow(static_cast<double>(i + 1), -exponent);
  }

  // The sum of the weights of the first n ranks.
  double sum(uint64_t n) const {
    if (n == 0) return 0.0;
    return n <= kExact ? sums_[n - 1] : sums_[kExact - 1] + tail(n);
  }

  // The sum of the weights of ranks first to end - 1. If these weigh next to nothing compared with the first ranks, a
  // difference of sums has no correct digits. Then the first kExact of them are added up, and the others are integrated
  // between the middles of the ranks.
  double weight(uint64_t first, uint64_t end) const {
    const double high = sum(end), difference = high - sum(first);
    if (first >= end || difference >= kTold * high) return std::fmax(difference, 0.0);
    const uint64_t added = std::min(end, first + kExact);
    double weight = 0.0;
    for (uint64_t i = first; i < added; ++i) weight += std::pow(static_cast<double>(i + 1), -exponent_);
    if (added == end) return weight;
    const double from = static_cast<double>(added) + 0.5, to = static_cast<double>(end) + 0.5, power = 1.0 - exponent_;
    const double span = std::log(to / from);
    return weight + std::pow(from, power) * (power == 0.0 ? span : std::expm1(power * span) / power);
  }

  double exponent() const { return exponent_; }

  // rank_at() or a neighbour of that rank, at a third of the cost.
  uint64_t near(double point, uint64_t n) const {
    if (n <= kExact || point < sums_[kExact - 1]) return rank_at(point, n);
    return std::max(kExact, guessed(point - sums_[kExact - 1], n));
  }

  // The rank that a point falls on: sum(rank) <= point < sum(rank + 1). point in [0, sum(n)), n >= 1. Always below n.
  uint64_t rank_at(double point, uint64_t n) const {
    const uint64_t exact = std::min(n, kExact);
    if (n <= kExact || point < sums_[kExact - 1]) {
      const auto found = std::upper_bound(sums_.begin(), sums_.begin() + static_cast<ptrdiff_t>(exact), point);
      return std::min(static_cast<uint64_t>(found - sums_.begin()), n - 1);
    }
    const double rest = point - sums_[kExact - 1];
    uint64_t low = kExact, high = n - 1;  // the rank is in [low, high]; narrowed around the guess, then halved
    const uint64_t guess = std::clamp(guessed(rest, n), low, high);
    if (tail(guess) > rest) {
      high = guess - (guess > low ? 1 : 0);
    } else {
      low = guess;
      if (guess < high && tail(guess + 1) > rest) high = guess;
    }
    while (low < high) {
      const uint64_t middle = high - low < 4 ? high : low + (high - low + 1) / 2;
      if (tail(middle) <= rest) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

 private:
  static constexpr double kTold = 1e-6;  // a difference of at least this part of its sums is right within 1e-9
  static constexpr double kLast = static_cast<double>(kExact);
  static constexpr double kMiddle = kLast + 0.5;

  // The sum of the weights of ranks kExact to n - 1. Exponentials of a logarithm leave no gap at exponent 1.
  double tail(uint64_t n) const {
    if (n <= kExact) return 0.0;
    const double times = static_cast<double>(n) / kLast;
    const double span = std::log(times), power = 1.0 - exponent_, raised = power * span;
    const double last = std::exp(-exponent_ * span);  // the last weight, as a part of the weight of rank kExact
    // times ^ power - 1. If that is small, it is not computed as a difference.
    const double grown = raised > 0.5 ? times * last - 1.0 : std::expm1(raised);
    const double integral = power == 0.0 ? kLast * span : kLast * grown / power;
    const double slope = exponent_ / 12.0 * (last / static_cast<double>(n) - 1.0 / kLast);
    return scale_ * (integral + 0.5 * (last - 1.0) - slope);
  }

  // About the rank where tail() reaches `rest`, by the integral between the middles of the ranks.
  uint64_t guessed(double rest, uint64_t n) const {
    const double power = 1.0 - exponent_;
    const double share = rest * per_rest_;
    const double inside = power * share;
    if (inside <= -1.0) return n - 1;
    const double at = kMiddle * std::exp(power == 0.0 ? share : std::log1p(inside) / power) - 0.5;
    return at < static_cast<double>(n) ? static_cast<uint64_t>(at) : n - 1;
  }

  double exponent_;
  double scale_;     // kExact ^ -exponent
  double per_rest_;  // 1 / (weight at the middle after the last exact rank x that middle)
  std::array<double, kExact> sums_{};
};

}  // namespace relive
