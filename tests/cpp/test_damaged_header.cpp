// Every bit of a region's header, one at a time: a bit of what never changes is refused, and no other bit does harm.
// tests/processes/test_damaged_header.py does the same to files, with the calls of a user and fewer bits of the former.
// The short run takes one bit in 16 bytes of the part that a checksum covers.
#include <cstddef>
#include <cstdlib>

#include "records_rig.hpp"

using namespace relive;
using namespace rig;

namespace {

bool is_within(size_t at, size_t begin, size_t count) { return at >= begin && at < begin + count; }

// Whether a table changes this byte while it lives. The checksum covers all other bytes.
bool may_change(size_t at) {
  if (is_within(at, offsetof(Header, clean), sizeof(Header::clean))) return true;
  if (is_within(at, offsetof(Header, boot_id), sizeof(Header::boot_id))) return true;
  if (at >= offsetof(Header, indexes) + sizeof(Header::indexes)) return true;
  if (at < offsetof(Header, indexes)) return false;
  const size_t in_index = (at - offsetof(Header, indexes)) % sizeof(IndexConfig);
  return is_within(in_index, offsetof(IndexConfig, priority_exponent), sizeof(IndexConfig::priority_exponent));
}

// Whether a run changes this bit. The bits of the first words, and of those that a table changes, are always changed.
bool is_taken(size_t at, unsigned bit) {
  if (!harness::is_short() || at < 256 || may_change(at)) return true;
  const size_t group = at / 16;
  return at % 16 == group % 16 && bit == group / 16 % 8;
}

}  // namespace

TEST(every_bit_of_a_header) {
  RecordsRig rig({.capacity = 64}, {});
  CHECK(rig.rig.write({0}, 20, std::vector<int>(20, 0), NextGiven::kNo) == Code::kOk);
  const Region& r = rig.region();
  const size_t num_bytes = r.geometry->region_bytes;
  const std::unique_ptr<std::byte[], void (*)(std::byte*)> copy(
      static_cast<std::byte*>(std::aligned_alloc(4096, (num_bytes + 4095) / 4096 * 4096)),
      [](std::byte* memory) { std::free(memory); });
  std::memcpy(copy.get(), r.base, r.geometry->slabs_offset);
  Region whole;
  CHECK(whole.open(copy.get(), num_bytes).ok());
  size_t taken = 0;
  for (size_t at = 0; at < sizeof(Header); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      if (!is_taken(at, bit)) continue;
      ++taken;
      copy[at] ^= std::byte{1} << bit;
      Region opened;
      const bool is_refused = !opened.open(copy.get(), num_bytes).ok();
      copy[at] ^= std::byte{1} << bit;
      if (!is_refused && !may_change(at)) CHECK_EQ(at, size_t{0});  // names the byte
    }
  }
  CHECK(whole.open(copy.get(), num_bytes).ok());
  CHECK(taken > sizeof(Header) / 16);
}

TEST_MAIN()
