// Powers of priorities and probabilities, sixteen at a time. A batch needs many of them, and the library's function
// would cost more than all the memory that an update touches.
//
// Owner:   none. Locking: none.
// Cost:    about 3 ns a number on 256-bit registers. The relative error is below 1e-9, enough for float32 priorities.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace relive {
namespace power {

using Four = double __attribute__((vector_size(32)));
using FourWords = uint64_t __attribute__((vector_size(32)));

inline constexpr size_t kFour = 4;

// A power takes some forty steps, each of which waits for the step before. So several groups of four numbers take each
// step together, and the processor works on one group while another waits: 1.8 times the speed of one group.
template <size_t kGroups>
struct Fours {
  Four at[kGroups];
};
inline constexpr size_t kSideBySide = 4;

template <size_t kGroups, class Step>
inline __attribute__((always_inline)) Fours<kGroups> each(const Step& step) {
  Fours<kGroups> made;
#pragma GCC unroll 4
  for (size_t k = 0; k < kGroups; ++k) made.at[k] = step(k);
  return made;
}

inline __attribute__((always_inline)) Four all(double value) { return Four{value, value, value, value}; }

// The polynomial of x with these coefficients, the one of the highest power first.
template <size_t kGroups, size_t kTerms>
inline __attribute__((always_inline)) Fours<kGroups> polynomial(const Fours<kGroups>& x,
                                                                const double (&coefficients)[kTerms]) {
  Fours<kGroups> sum = each<kGroups>([&](size_t k) { return coefficients[1] + x.at[k] * coefficients[0]; });
#pragma GCC unroll 16
  for (size_t term = 2; term < kTerms; ++term)
    sum = each<kGroups>([&](size_t k) { return coefficients[term] + x.at[k] * sum.at[k]; });
  return sum;
}

// log2 of normal numbers above 0. x = 2^n m with m in [sqrt(1/2), sqrt(2)); log2 m = 2 / ln 2 x artanh(s), where
// s = (m - 1) / (m + 1) lies within 0.172: the series up to s^11 leaves 1e-10.
template <size_t kGroups>
inline __attribute__((always_inline)) Fours<kGroups> log2_of(const Fours<kGroups>& x) {
  constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;
  constexpr uint64_t kBias = uint64_t{1024} << 52;  // keeps the exponent above 0 while it is shifted
  constexpr uint64_t kWhole = 0xfff0000000000000, kTwo52 = 0x4330000000000000;
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  constexpr double kSeries[] = {kTwoOverLn2 / 11, kTwoOverLn2 / 9, kTwoOverLn2 / 7,
                                kTwoOverLn2 / 5,  kTwoOverLn2 / 3, kTwoOverLn2};
  const auto shifted = [&](size_t k) { return reinterpret_cast<FourWords>(x.at[k]) - (kRootOfHalf - kBias); };
  const Fours<kGroups> s = each<kGroups>([&](size_t k) {
    const Four m = reinterpret_cast<Four>(reinterpret_cast<FourWords>(x.at[k]) - ((shifted(k) & kWhole) - kBias));
    return (m - 1.0) / (m + 1.0);
  });
  const Fours<kGroups> series = polynomial(each<kGroups>([&](size_t k) { return s.at[k] * s.at[k]; }), kSeries);
  return each<kGroups>([&](size_t k) {
    const Four n = reinterpret_cast<Four>((shifted(k) >> 52) | kTwo52) - (0x1p52 + 1024.0);
    return n + s.at[k] * series.at[k];
  });
}

// 2^y for |y| <= 1000: 2^n by the exponent's bits, 2^f with f in [-1/2, 1/2] by its Taylor series up to f^8.
template <size_t kGroups>
inline __attribute__((always_inline)) Fours<kGroups> exp2_of(const Fours<kGroups>& y) {
  constexpr double kRound = 0x1.8p52;
  constexpr double kSeries[] = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0};
  const Fours<kGroups> rounded = each<kGroups>([&](size_t k) { return y.at[k] + kRound; });
  const Fours<kGroups> f =
      each<kGroups>([&](size_t k) { return (y.at[k] - (rounded.at[k] - kRound)) * 0.69314718055994531; });
  const Fours<kGroups> series = polynomial(f, kSeries);
  return each<kGroups>([&](size_t k) {
    return reinterpret_cast<Four>(reinterpret_cast<FourWords>(series.at[k]) +
                                  (reinterpret_cast<FourWords>(rounded.at[k]) << 52));
  });
}

// x^exponent. 0^0 = 1, 0^e = 0 for e > 0, and a huge number for e < 0, as in the limit.
template <size_t kGroups>
inline __attribute__((always_inline)) Fours<kGroups> raised(const Fours<kGroups>& x, double exponent) {
  const Four least = all(0x1p-1000), most = all(1000.0);
  const Fours<kGroups> logs = log2_of(each<kGroups>([&](size_t k) { return x.at[k] > least ? x.at[k] : least; }));
  const Fours<kGroups> powers = exp2_of(each<kGroups>([&](size_t k) {
    Four y = exponent * logs.at[k];
    y = y > most ? most : y;
    return y < -most ? -most : y;
  }));
  if (!(exponent > 0.0)) return powers;
  return each<kGroups>([&](size_t k) { return x.at[k] == 0.0 ? Four{} : powers.at[k]; });
}

// The powers of the next kGroups groups of four, all of which are complete.
template <size_t kGroups, class From, class To>
inline __attribute__((always_inline)) void powers_of_next(const From* from, double scale, double exponent, To* to) {
  Fours<kGroups> x;
#pragma GCC unroll 16
  for (size_t k = 0; k < kGroups * kFour; ++k) x.at[k / kFour][k % kFour] = static_cast<double>(from[k]);
  x = raised(each<kGroups>([&](size_t k) { return x.at[k] * scale; }), exponent);
#pragma GCC unroll 16
  for (size_t k = 0; k < kGroups * kFour; ++k) to[k] = static_cast<To>(x.at[k / kFour][k % kFour]);
}

}  // namespace power

// The least of these numbers, +inf of none. Four minima run together, because a single one would wait for each step.
inline double least_of(const double* from, size_t count) {
  const double infinity = std::numeric_limits<double>::infinity();
  power::Four least = {infinity, infinity, infinity, infinity};
  size_t i = 0;
  for (; i + power::kFour <= count; i += power::kFour) {
    power::Four four;
    std::memcpy(&four, from + i, sizeof four);
    least = four < least ? four : least;
  }
  double result = std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
  for (; i < count; ++i) result = std::min(result, from[i]);
  return result;
}

// to[i] = (from[i] * scale)^exponent for finite from[i] * scale >= 0. A result does not depend on its neighbours.
template <class From, class To>
void powers_of(const From* from, size_t count, double scale, double exponent, To* to) {
  constexpr size_t kMany = power::kSideBySide * power::kFour;
  size_t i = 0;
  for (; i + kMany <= count; i += kMany) power::powers_of_next<power::kSideBySide>(from + i, scale, exponent, to + i);
  for (; i + power::kFour <= count; i += power::kFour) power::powers_of_next<1>(from + i, scale, exponent, to + i);
  if (i == count) return;
  From last[power::kFour] = {1, 1, 1, 1};
  To made[power::kFour];
  std::copy(from + i, from + count, last);
  power::powers_of_next<1>(last, scale, exponent, made);
  std::copy(made, made + (count - i), to + i);
}

}  // namespace relive
