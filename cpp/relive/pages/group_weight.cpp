#include "relive/pages/group_weight.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "relive/pages/records.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

// The part of the largest value that sums of some thousand numbers of this precision lose.
constexpr double kRoundingOfFloat = 1e-6, kRoundingOfDouble = 1e-12;

double load_number(const Region& r, const ColumnLayout& column, uint64_t page, uint32_t offset) {
  const std::byte* const from = r.page_base(page) + column.offset + offset * column.stride;
  if (column.dtype[2] == '8') {
    double value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double member_value(const Region& r, const ColumnLayout& column, const ItemWindow& window) {
  const uint32_t num_rows = window.num_rows.load(std::memory_order_relaxed);
  const uint32_t asked = column.kind == ColumnKind::kEpisode ? std::min(num_rows, 1u) : num_rows;
  double sum = 0.0;
  walk_rows(r, window.key.load(std::memory_order_relaxed), asked, [&](uint64_t page, uint32_t first, uint32_t count) {
    for (uint32_t offset = first; offset < first + count; ++offset) sum += load_number(r, column, page, offset);
    return true;
  });
  return sum;
}

}  // namespace

float group_priority(const Region& r, uint32_t index, uint64_t record, float given) {
  const GroupConfig& group = r.header->indexes[index].group;
  if (group.weight == GroupWeight::kNone || !std::isnan(given) || !RELIVE_RULE(Y6_weight)) return given;
  double values[kMaxGroupSize];
  const ItemWindow* const windows = r.records[index].windows_of(record);
  double sum = 0.0, variance = 0.0;
  for (uint32_t w = 0; w < group.size; ++w) {
    values[w] = member_value(r, r.columns[group.weighed], windows[w]);
    sum += values[w];
  }
  const double mean = sum / group.size;  // rounded once: most rewards are whole numbers, whose sum is exact
  // Members whose values differ by rounding alone have a variance of 0: a sum of rewards that are no binary fractions
  // depends on their order.
  const auto [least, most] = std::minmax_element(values, values + group.size);
  const double rounding = r.columns[group.weighed].dtype[2] == '8' ? kRoundingOfDouble : kRoundingOfFloat;
  const bool is_one_value = *most - *least <= rounding * std::max(std::abs(*most), std::abs(*least));
  for (uint32_t w = 0; w < group.size && !is_one_value; ++w)
    variance += (values[w] - mean) * (values[w] - mean) / group.size;
  const bool is_mean = group.weight == GroupWeight::kMean || group.weight == GroupWeight::kAnyMean;
  const double value = is_mean ? mean : variance;
  if (!(value > 0.0)) return 0.0f;
  if (group.weight == GroupWeight::kAnyMean || group.weight == GroupWeight::kAnyVariance) return 1.0f;
  return static_cast<float>(std::min<double>(value, std::numeric_limits<float>::max()));
}

}  // namespace relive
