// Powers of priorities and probabilities, four at a time: they are taken by the batch, where the library's function
// costs more than all the memory an update touches.
//
// Cost: about 3 ns a number on 256-bit registers. Relative error below 1e-9: exact enough for what is stored as float32.
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

// log2 of normal numbers above 0. x = 2^n m with m in [sqrt(1/2), sqrt(2)); log2 m = 2 / ln 2 x artanh(s), where
// s = (m - 1) / (m + 1) lies within 0.172: the series up to s^11 leaves 1e-10.
inline __attribute__((always_inline)) Four log2_of(Four x) {
  constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;
  constexpr uint64_t kBias = uint64_t{1024} << 52;  // keeps the exponent above 0 while it is shifted
  constexpr uint64_t kWhole = 0xfff0000000000000, kTwo52 = 0x4330000000000000;
  const FourWords shifted = reinterpret_cast<FourWords>(x) - (kRootOfHalf - kBias);
  const Four n = reinterpret_cast<Four>((shifted >> 52) | kTwo52) - (0x1p52 + 1024.0);
  const Four m = reinterpret_cast<Four>(reinterpret_cast<FourWords>(x) - ((shifted & kWhole) - kBias));
  const Four s = (m - 1.0) / (m + 1.0);
  const Four s2 = s * s;
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  const Four series =
      kTwoOverLn2 +
      s2 * (kTwoOverLn2 / 3 +
            s2 * (kTwoOverLn2 / 5 + s2 * (kTwoOverLn2 / 7 + s2 * (kTwoOverLn2 / 9 + s2 * (kTwoOverLn2 / 11)))));
  return n + s * series;
}

// 2^y for |y| <= 1000: 2^n by the exponent's bits, 2^f with f in [-1/2, 1/2] by its Taylor series up to f^8.
inline __attribute__((always_inline)) Four exp2_of(Four y) {
  constexpr double kRound = 0x1.8p52;
  const Four rounded = y + kRound;
  const Four f = (y - (rounded - kRound)) * 0.69314718055994531;
  const Four series =
      1.0 +
      f * (1.0 + f * (1.0 / 2 +
                      f * (1.0 / 6 +
                           f * (1.0 / 24 + f * (1.0 / 120 + f * (1.0 / 720 + f * (1.0 / 5040 + f * (1.0 / 40320))))))));
  return reinterpret_cast<Four>(reinterpret_cast<FourWords>(series) + (reinterpret_cast<FourWords>(rounded) << 52));
}

// x^exponent. 0^0 = 1, 0^e = 0 for e > 0 and a huge number for e < 0, as the limit demands.
inline __attribute__((always_inline)) Four of_four(Four x, double exponent) {
  constexpr double kMost = 1000.0;
  const Four least = {0x1p-1000, 0x1p-1000, 0x1p-1000, 0x1p-1000};
  const Four clamped = x > least ? x : least;
  Four y = exponent * log2_of(clamped);
  y = y > kMost ? Four{kMost, kMost, kMost, kMost} : y;
  y = y < -kMost ? Four{-kMost, -kMost, -kMost, -kMost} : y;
  const Four zero = {0.0, 0.0, 0.0, 0.0};
  const Four powers = exp2_of(y);
  return exponent > 0.0 ? (x == 0.0 ? zero : powers) : powers;
}

}  // namespace power

// The least of them, +inf of none. Four at a time: a single minimum would wait for the one before it.
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

// to[i] = (from[i] * scale)^exponent for finite from[i] * scale >= 0; every number as if it were alone.
template <class From, class To>
void powers_of(const From* from, size_t count, double scale, double exponent, To* to) {
  for (size_t i = 0; i < count; i += power::kFour) {
    power::Four four;
    if (count - i >= power::kFour) {
#pragma GCC unroll 8
      for (size_t k = 0; k < power::kFour; ++k) four[k] = static_cast<double>(from[i + k]);
      four = power::of_four(four * scale, exponent);
#pragma GCC unroll 8
      for (size_t k = 0; k < power::kFour; ++k) to[i + k] = static_cast<To>(four[k]);
      continue;
    }
    for (size_t k = 0; k < power::kFour; ++k) four[k] = i + k < count ? static_cast<double>(from[i + k]) : 1.0;
    four = power::of_four(four * scale, exponent);
    for (size_t k = 0; i + k < count; ++k) to[i + k] = static_cast<To>(four[k]);
  }
}

}  // namespace relive
