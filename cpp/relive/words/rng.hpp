// Counter-based random numbers: the i-th number of a call is a pure function of (seed, stream, call, attempt, i).
//
//   mix(z): z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
//           (the finaliser of SplitMix64), all arithmetic modulo 2^64, golden = 0x9E3779B97F4A7C15
//   base  : b = mix(seed + golden); b = mix((b ^ stream) + golden); b = mix((b ^ call) + golden);
//           b = mix((b ^ attempt) + golden)
//   bits(i)     = mix(base + (i + 1) * golden)
//   uniform(i)  = (bits(i) >> 11) * 2^-53, in [0, 1)
//   below(i, n) = ((bits(i) >> 32) * n) >> 32, in [0, n)
//
// So within a call the numbers are the SplitMix64 sequence that starts at base; a redraw (the next attempt) or another
// stream does not shift anybody else's numbers. No state: any thread may use one object at once, loops vectorise.
#pragma once

#include <cstdint>

namespace relive {

// SplitMix64 (Steele, Lea and Flood 2014): a state that grows by kGolden, and a finaliser of it.
struct SplitMix64 {
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  static constexpr uint64_t kFactors[] = {0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu};
  static constexpr uint32_t kShifts[] = {30, 27, 31};

  // The finaliser: a bijection of 64 bits.
  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ (z >> kShifts[0])) * kFactors[0];
    z = (z ^ (z >> kShifts[1])) * kFactors[1];
    return z ^ (z >> kShifts[2]);
  }
  // The next number of the sequence.
  static constexpr uint64_t next(uint64_t* state) { return mix(*state += kGolden); }
};

class CounterRng final {
 public:
  constexpr CounterRng(uint64_t seed, uint64_t stream, uint64_t call, uint64_t attempt)
      : base_(absorb(absorb(absorb(SplitMix64::mix(seed + SplitMix64::kGolden), stream), call), attempt)) {}

  // The state that the numbers follow from.
  constexpr uint64_t base() const { return base_; }

  constexpr uint64_t bits(uint64_t i) const { return SplitMix64::mix(base_ + (i + 1) * SplitMix64::kGolden); }

  // In [0, 1), a multiple of 2^-53.
  constexpr double uniform(uint64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1.0p-53; }

  // In [0, n); n = 0 gives 0. Biased by at most n / 2^32 of a number's share.
  constexpr uint32_t below(uint64_t i, uint32_t n) const {
    return static_cast<uint32_t>(((bits(i) >> 32) * uint64_t{n}) >> 32);
  }

 private:
  static constexpr uint64_t absorb(uint64_t state, uint64_t word) {
    return SplitMix64::mix((state ^ word) + SplitMix64::kGolden);
  }

  uint64_t base_;
};

}  // namespace relive
