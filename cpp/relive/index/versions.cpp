#include "relive/index/versions.hpp"

#include <algorithm>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

uint32_t version_of(const Region& r, uint64_t slot) { return r.marks[slot].policy_version.load(kRelaxed); }

// A position among the rows of a lane, tails included, that can move in both directions.
struct Walk {
  const Region& r;
  uint64_t page;
  uint32_t row;

  uint64_t slot() const { return r.slot_of(page, row); }
  bool is_there() const {
    const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
    return row >= range.step_begin && row < range.step_end;
  }
  bool is_step() const { return !r.is_tail(page, row); }
  bool ends_episode() const { return (r.head_of(slot()).load(kRelaxed) & (kTerminatedBit | kTruncatedBit)) != 0; }
  bool is_first() const { return (r.head_of(slot()).load(kRelaxed) & kStepMask) == 0; }
  bool go_on(uint32_t count) {
    for (row += count; row >= r.page_len; row -= r.page_len) {
      page = r.alive(r.pages[page].next.load(kRelaxed));
      if (page == kNoPage) return false;
    }
    return is_there();
  }
  bool go_back() {
    if (row == 0) {
      page = r.alive(r.pages[page].prev.load(kRelaxed));
      if (page == kNoPage) return false;
      row = r.page_len;
    }
    --row;
    return is_there();
  }
};

uint32_t oldest_of_record(const Region& r, uint32_t index, uint64_t record) {
  const Records& records = r.records[index];
  uint32_t lowest = ~0u;
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
    const ItemWindow& window = records.windows_of(record)[w];
    const uint32_t num_rows = window.num_rows.load(kRelaxed);
    if (num_rows == 0) continue;
    const uint64_t first = r.key_slot(window.key.load(kRelaxed));
    Walk at{r, r.page_of(first), static_cast<uint32_t>(r.offset_of(first))};
    for (uint32_t k = 0; k < num_rows; ++k) {
      if (k != 0 && !at.go_on(records.shape(w).stride)) break;
      lowest = std::min(lowest, version_of(r, at.slot()));
    }
  }
  return lowest == ~0u ? 0 : lowest;
}

// The rows before the item's own, its burn-in: no further than its episode (kCross: its lane) begins.
uint32_t oldest_before(const Region& r, const SequenceConfig& sequence, uint64_t slot) {
  const uint64_t uid = r.lane_of(slot);
  uint32_t lowest = version_of(r, slot);
  Walk at{r, r.page_of(slot), static_cast<uint32_t>(r.offset_of(slot))};
  for (uint32_t k = 0; k < sequence.burn_in; ++k) {
    if (!sequence.crosses() && at.is_first()) break;
    do {
      if (!at.go_back()) return lowest;
    } while (!at.is_step());
    if (r.lane_of(at.slot()) != uid) break;
    lowest = std::min(lowest, version_of(r, at.slot()));
  }
  return lowest;
}

// The rows from the item's own on, no further than its episode (kCross: its lane) ends.
uint32_t oldest_from(const Region& r, const SequenceConfig& sequence, uint64_t slot) {
  const uint64_t uid = r.lane_of(slot);
  uint32_t lowest = version_of(r, slot);
  Walk at{r, r.page_of(slot), static_cast<uint32_t>(r.offset_of(slot))};
  for (uint32_t k = 1; k < sequence.length + sequence.bootstrap; ++k) {
    if (!sequence.crosses() && at.ends_episode()) break;
    if (!at.go_on(1)) break;
    while (sequence.crosses() && !at.is_step())
      if (!at.go_on(1)) return lowest;
    if (!at.is_step() || r.lane_of(at.slot()) != uid) break;
    lowest = std::min(lowest, version_of(r, at.slot()));
  }
  return lowest;
}

}  // namespace

uint32_t oldest_version(const Region& r, uint32_t index, uint64_t leaf) {
  if (r.map(index).is_explicit) return oldest_of_record(r, index, leaf);
  const SequenceConfig sequence = r.header->indexes[index].own_rows();
  if (!sequence.is_set()) return version_of(r, leaf);
  return std::min(oldest_before(r, sequence, leaf), oldest_from(r, sequence, leaf));
}

}  // namespace relive
