// CRC-32 (IEEE 802.3) over bytes that come in parts. It detects every change of one bit and every burst of up to 32
// bits.
// Cost: one table look-up a byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace relive {

// The table of a reflected polynomial: the sum of each byte.
constexpr std::array<uint32_t, 256> crc_table(uint32_t polynomial) {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? polynomial : 0);
    table[byte] = rest;
  }
  return table;
}

class Crc32 final {
 public:
  void add(const void* bytes, size_t count) {
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (size_t i = 0; i < count; ++i) state_ = kTable[(state_ ^ at[i]) & 255] ^ state_ >> 8;
  }
  uint32_t value() const { return ~state_; }

 private:
  static constexpr std::array<uint32_t, 256> kTable = crc_table(0xedb88320u);
  uint32_t state_ = ~uint32_t{0};
};

}  // namespace relive
