#include "relive/words/crc32c.hpp"

#include <array>
#include <cstring>

#include "relive/words/checksum.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace relive {
namespace {

constexpr std::array<uint32_t, 256> kTable = crc_table(0x82f63b78u);

[[maybe_unused]] uint32_t by_table(const unsigned char* at, size_t count, uint32_t state) {
  for (size_t i = 0; i < count; ++i) state = kTable[(state ^ at[i]) & 255] ^ state >> 8;
  return state;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(const unsigned char* at, size_t count, uint32_t state) {
  uint64_t wide = state;
  for (; count >= 8; at += 8, count -= 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  return by_table(at, count, static_cast<uint32_t>(wide));
}
#endif

}  // namespace

uint32_t crc32c(const void* bytes, size_t count, uint32_t start) {
  const auto* at = static_cast<const unsigned char*>(bytes);
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~by_instruction(at, count, ~start);
  return ~by_table(at, count, ~start);
#elif defined(__ARM_FEATURE_CRC32)
  uint32_t state = ~start;
  for (; count >= 8; at += 8, count -= 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    state = __crc32cd(state, word);
  }
  return ~by_table(at, count, state);
#else
  return ~by_table(at, count, ~start);
#endif
}

}  // namespace relive
