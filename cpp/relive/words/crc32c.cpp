#include "relive/words/crc32c.hpp"

#include <array>
#include <cstring>

#include "relive/words/checksum.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define RELIVE_HAS_CRC32C __attribute__((target("sse4.2")))
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define RELIVE_HAS_CRC32C
#endif

namespace relive {
namespace {

constexpr std::array<uint32_t, 256> kTable = crc_table(0x82f63b78u);

[[maybe_unused]] uint32_t by_table(const unsigned char* at, size_t count, uint32_t state) {
  for (size_t i = 0; i < count; ++i) state = kTable[(state ^ at[i]) & 255] ^ state >> 8;
  return state;
}

#if defined(RELIVE_HAS_CRC32C)

constexpr size_t kPart = 1024;  // bytes of each of the three parts that are summed side by side

// The state after kPart more bytes of zeros, by the four bytes of the state. The step is linear over GF(2).
constexpr std::array<std::array<uint32_t, 256>, 4> kAfterZeros = [] {
  std::array<uint32_t, 32> of_bit{};
  for (uint32_t bit = 0; bit < 32; ++bit) {
    uint32_t state = uint32_t{1} << bit;
    for (size_t i = 0; i < kPart; ++i) state = kTable[state & 255] ^ state >> 8;
    of_bit[bit] = state;
  }
  std::array<std::array<uint32_t, 256>, 4> tables{};
  for (uint32_t place = 0; place < 4; ++place)
    for (uint32_t byte = 0; byte < 256; ++byte)
      for (uint32_t bit = 0; bit < 8; ++bit)
        if ((byte >> bit & 1) != 0) tables[place][byte] ^= of_bit[8 * place + bit];
  return tables;
}();

uint64_t after_zeros(uint64_t state) {
  return kAfterZeros[0][state & 255] ^ kAfterZeros[1][state >> 8 & 255] ^ kAfterZeros[2][state >> 16 & 255] ^
         kAfterZeros[3][state >> 24 & 255];
}

RELIVE_HAS_CRC32C inline uint64_t add_word(uint64_t state, const unsigned char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
#if defined(__x86_64__)
  return _mm_crc32_u64(state, word);
#else
  return __crc32cd(static_cast<uint32_t>(state), word);
#endif
}

// The instruction gives its result after 3 cycles, but a new one starts in each cycle: so three parts at a time.
RELIVE_HAS_CRC32C uint32_t by_instruction(const unsigned char* at, size_t count, uint32_t start) {
  uint64_t state = start;
  for (; count >= 3 * kPart; at += 3 * kPart, count -= 3 * kPart) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kPart; i += 8) {
      state = add_word(state, at + i);
      second = add_word(second, at + kPart + i);
      third = add_word(third, at + 2 * kPart + i);
    }
    state = after_zeros(after_zeros(state) ^ second) ^ third;
  }
  for (; count >= 8; at += 8, count -= 8) state = add_word(state, at);
  return by_table(at, count, static_cast<uint32_t>(state));
}

#endif

}  // namespace

uint32_t crc32c(const void* bytes, size_t count, uint32_t start) {
  const auto* at = static_cast<const unsigned char*>(bytes);
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  return ~(has_instruction ? by_instruction : by_table)(at, count, ~start);
#elif defined(RELIVE_HAS_CRC32C)
  return ~by_instruction(at, count, ~start);
#else
  return ~by_table(at, count, ~start);
#endif
}

}  // namespace relive
