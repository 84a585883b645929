// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720, appendix B.4) over bytes that come in parts.
// Cost: 8 bytes a cycle where the processor has an instruction for it, and fewer than 3 kB together 8 in 3 cycles; else
// one table look-up a byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace relive {

// The sum of `count` bytes that follow bytes whose sum is `start`.
uint32_t crc32c(const void* bytes, size_t count, uint32_t start = 0);

}  // namespace relive
