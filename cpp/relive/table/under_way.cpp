#include "relive/table/under_way.hpp"

#include <algorithm>

#include "relive/pages/page_rows.hpp"
#include "relive/pages/records.hpp"
#include "relive/words/row_bytes.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The last step of the episode that a lane has open; page kNoPage: none is open.
struct OpenStep {
  uint64_t page = kNoPage;
  uint32_t offset = 0;
  uint32_t episode_step = 0;
};

OpenStep open_step(const Region& r, uint32_t lane_slot) {
  const Lane& lane = r.lanes[lane_slot];
  if (lane.state.load(std::memory_order_acquire) != LaneState::kLive) return {};
  uint64_t page = r.alive(lane.open.load(kRelaxed));
  if (page != kNoPage && range_of(r, page).step_end == 0) page = r.alive(r.pages[page].prev.load(kRelaxed));
  if (page == kNoPage) return {};
  const Range range = range_of(r, page);
  if (range.step_end <= range.step_begin || range.step_end > r.page_len || r.is_tail(page, range.step_end - 1))
    return {};
  const uint32_t offset = range.step_end - 1;
  const uint32_t head = load_head(r.page_base(page) + offset * r.geometry->record_stride);
  if ((head & (kTerminatedBit | kTruncatedBit)) != 0) return {};
  return {page, offset, head & kStepMask};
}

// The rows after an item's own that must be there before the item is published. If ends move windows back, the row
// after the window decides (rule S2).
uint32_t rows_to_settle(const Region& r, uint32_t index) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  const uint32_t after = r.shape(index).after();
  return sequence.at_end == AtEnd::kShift ? std::max(after, sequence.length + r.geometry->has_state) : after;
}

// Whether the row `back` rows before a step of its episode has not left the table.
bool is_row_there(const Region& r, const OpenStep& step, uint32_t back) {
  uint64_t page = step.page;
  int64_t row = int64_t{step.offset} - back;
  while (row < 0 && page != kNoPage) {
    page = r.alive(r.pages[page].prev.load(kRelaxed));
    row += r.page_len;
  }
  return page != kNoPage && row >= int64_t{range_of(r, page).step_begin};
}

// Whether the open episode of a lane can still be a member of a group, or has an item of the index under way. It does
// not if the first row has left, by clear() or because the table was full: no row that comes makes that item.
bool is_item_open(const Region& r, uint32_t index, const OpenStep& step) {
  const IndexConfig& config = r.header->indexes[index];
  const SequenceConfig& sequence = config.sequence;
  if (sequence.period == 0 && sequence.only_the_last != 0) return true;  // which window is the item, its end decides
  const uint32_t since = sequence.period == 0 ? step.episode_step : step.episode_step % sequence.period;
  if (since >= rows_to_settle(r, index) && !config.group.is_set() && !sequence.waits_for_end()) return false;
  return is_row_there(r, step, since);
}

int64_t load_group(const Region& r, uint32_t index, const OpenStep& step) {
  const ColumnLayout& column = r.columns[r.header->indexes[index].group.column];
  int64_t value;
  copy_bytes(reinterpret_cast<std::byte*>(&value), r.page_base(step.page) + column.offset + step.offset * column.stride,
             sizeof value);
  return value;
}

}  // namespace

UnderWay::UnderWay(const Region& r, LaneBlock block) : r_(r), block_(block) {
  if (!r.has_groups()) return;
  const size_t most = r.geometry->max_lanes + block.steps.num_rows * block.num_lanes();
  under_way_.reserve(most);
  counted_.reserve(most);
}

bool UnderWay::is_counted(const Region& r, uint32_t index, const LimiterConfig& limiter) {
  if (limiter.kind != LimiterConfig::kQueue && limiter.kind != LimiterConfig::kStalenessBudget) return false;
  if (!RELIVE_RULE(P6_under_way)) return false;
  const IndexConfig& config = r.header->indexes[index];
  if (config.group.is_set()) return true;
  const SequenceConfig& sequence = config.sequence;
  if (config.map == LeafMap::kExplicit || !sequence.is_set() || sequence.crosses() || config.hindsight.is_set())
    return false;
  return sequence.period == 0 || sequence.period > rows_to_settle(r, index);
}

void UnderWay::look(uint32_t index) {
  index_ = index;
  num_items_ = num_groups_ = 0;
  under_way_.clear();
  const bool are_groups = r_.header->indexes[index].group.is_set();
  for (uint32_t lane_slot = 0; lane_slot < r_.geometry->max_lanes; ++lane_slot) {
    const OpenStep step = open_step(r_, lane_slot);
    if (step.page == kNoPage || !is_item_open(r_, index, step)) continue;
    const bool stands_still = r_.lanes[lane_slot].is_refused.load(kRelaxed) != 0 && RELIVE_RULE(P6_stands);
    num_items_ += stands_still ? 0 : 1;
    if (!are_groups) continue;
    const Members member{load_group(r_, index, step), 1};
    under_way_.push_back(member);
    if (!stands_still) counted_.push_back(member);
  }
  if (!are_groups) return;
  num_items_ = count_groups();
  std::copy(under_way_.begin(), under_way_.end(), std::back_inserter(counted_));
  num_groups_ = count_groups();
}

int64_t UnderWay::groups_of(size_t stored, size_t rows) {
  const StepBlock& steps = block_.steps;
  const Cells& values = steps.columns[r_.header->indexes[index_].group.column];
  std::copy(under_way_.begin(), under_way_.end(), std::back_inserter(counted_));
  for (size_t m = 0; m < steps.num_lanes; ++m) {
    const WriterLane& lane = block_.lane(m);
    bool begins = lane.episode_step == 0;
    for (size_t row = lane.num_stored; row * steps.num_lanes + m < stored + rows; ++row) {
      if (begins) {
        int64_t value;
        std::memcpy(&value, values.at(row, m), sizeof value);
        counted_.push_back({value, 1});
      }
      begins = steps.ends_at(row, m);
    }
  }
  return count_groups() - num_groups_;
}

// The groups that the episodes in counted_ belong to, with the members that open groups have already. Empties counted_.
int64_t UnderWay::count_groups() {
  std::sort(counted_.begin(), counted_.end());
  size_t num_values = 0;
  for (const Members& members : counted_) {
    if (num_values != 0 && counted_[num_values - 1].value == members.value) {
      counted_[num_values - 1].count += members.count;
    } else {
      counted_[num_values++] = members;
    }
  }
  counted_.resize(num_values);
  const Records& records = r_.records[index_];
  for (uint64_t record = 0; record < records.geometry->max_items && num_values != 0; ++record) {
    if (!is_open_group(r_, index_, record)) continue;
    int64_t value;
    std::memcpy(&value, records.values_of(record), sizeof value);
    const auto found = std::lower_bound(counted_.begin(), counted_.end(), Members{value, 0});
    if (found == counted_.end() || found->value != value) continue;
    const ItemWindow* const windows = records.windows_of(record);
    for (uint32_t w = 0; w < records.geometry->group_size && windows[w].num_rows.load(kRelaxed) != 0; ++w)
      found->count += 1;
  }
  const auto size = static_cast<int64_t>(records.geometry->group_size);
  int64_t groups = 0;
  for (const Members& members : counted_) groups += (members.count + size - 1) / size;
  counted_.clear();
  return groups;
}

}  // namespace relive
