// CRC-32 (IEEE 802.3) over bytes that come in parts. It detects every change of one bit and every burst of up to 32
// bits.
// Cost: one table look-up a byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace relive {

class Crc32 final {
 public:
  void add(const void* bytes, size_t count) {
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (size_t i = 0; i < count; ++i) state_ = kTable[(state_ ^ at[i]) & 255] ^ state_ >> 8;
  }
  uint32_t value() const { return ~state_; }

 private:
  static constexpr std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t rest = byte;
      for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0xedb88320u : 0);
      table[byte] = rest;
    }
    return table;
  }();
  uint32_t state_ = ~uint32_t{0};
};

}  // namespace relive
