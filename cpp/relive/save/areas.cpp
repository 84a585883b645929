#include "relive/save/areas.hpp"

#include <cmath>

#include "relive/index/exponent_change.hpp"
#include "relive/index/leaf_areas.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kMostNumber = uint64_t{1} << 62;

template <class T>
std::byte* bytes_of(T* at) {
  return reinterpret_cast<std::byte*>(at);
}

void add_index(const Region& r, uint32_t i, std::vector<SavedArea>* areas) {
  const bool has_records = r.map(i).is_explicit;
  const uint64_t leaves = has_records ? 1 : r.page_len;  // of an entry
  const EntryOf per = has_records ? EntryOf::kRecord : EntryOf::kPage;
  const uint64_t num_entries = has_records ? r.map(i).num_leaves : r.geometry->num_pages;
  for (const LeafArea& area : leaf_areas(r, i))
    areas->push_back({area.name, i, per, area.at, area.leaf_bytes * leaves, num_entries, false});
  if (r.visited[i] != nullptr) areas->push_back({"visited", i, EntryOf::kTable, bytes_of(r.visited[i]), 8, 1, false});
  if (!has_records) return;
  const Records& records = r.records[i];
  const RecordGeometry& g = *records.geometry;
  areas->push_back({"record words", i, per, bytes_of(records.words), sizeof(uint64_t), num_entries, false});
  areas->push_back(
      {"windows", i, per, bytes_of(records.windows), sizeof(ItemWindow) * g.max_windows, num_entries, true});
  if (g.value_stride != 0) areas->push_back({"values", i, per, records.values, g.value_stride, num_entries, true});
  if (records.are_groups())
    areas->push_back(
        {"joined", i, EntryOf::kLane, bytes_of(records.joined), sizeof(uint64_t), r.geometry->max_lanes, false});
}

// Calls each(number of the save, word of the region) for the numbers of an index that have one word.
template <class Saved, class State, class Each>
void for_each_number(Saved& saved, State& state, Each each) {
  each(saved.inserted, state.inserted);
  each(saved.used, state.used);
  each(saved.lacked, state.lacked);
  each(saved.next_item, state.next_item);
  each(saved.tickets, state.tickets);
  each(saved.timed_out, state.timed_out);
  each(saved.expired, state.expired);
  each(saved.base, state.base);
  each(saved.filtered, state.filtered);
  each(saved.max_priority, state.max_priority);
  each(saved.max_mass, state.max_mass);
}

SavedIndex read_index(Held& held, uint32_t i) {
  const Region& r = held.region;
  const IndexState& state = r.header->index_state[i];
  SavedIndex saved{};
  for_each_number(saved, state, [](auto& number, const auto& word) { number = word.load(kRelaxed); });
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p) saved.done += r.credit(p, i).done.load(kRelaxed);
  saved.exponent = exponent_of(r.header->indexes[i]);
  saved.limiter = state.limiter.load();
  return saved;
}

void write_index(Held& held, uint32_t i, const SavedIndex& saved) {
  const Region& r = held.region;
  IndexState& state = r.header->index_state[i];
  for_each_number(saved, state, [](const auto& number, auto& word) { word.store(number); });
  r.credit(0, i).done.store(saved.done);
  std::atomic_ref<double>(r.header->indexes[i].priority_exponent).store(saved.exponent);
  state.limiter.store(saved.limiter);
}

bool is_count(int64_t number) { return number >= 0 && static_cast<uint64_t>(number) < kMostNumber; }
bool is_number(uint64_t number) { return number < kMostNumber; }
bool is_finite_from(double least, double value) { return std::isfinite(value) && value >= least; }

const char* wrong_in_index(const SavedIndex& saved) {
  if (!is_count(saved.inserted) || !is_count(saved.used) || !is_count(saved.lacked) || !is_count(saved.done))
    return "a count of items";
  if (!is_number(saved.next_item) || !is_number(saved.tickets) || !is_number(saved.timed_out) ||
      !is_number(saved.expired) || !is_number(saved.base) || !is_number(saved.filtered))
    return "a number of an index";
  if (!is_finite_from(0.0, saved.max_priority) || !is_finite_from(0.0, saved.max_mass)) return "the largest priority";
  if (!is_finite_from(0.0, saved.exponent)) return "the exponent of priorities";
  const LimiterConfig& limiter = saved.limiter;
  const bool has_nan = std::isnan(limiter.samples_per_insert) || std::isnan(limiter.lo) || std::isnan(limiter.hi) ||
                       std::isnan(limiter.tolerance) || std::isnan(limiter.eta) ||
                       std::isnan(limiter.items_per_version);
  if (limiter.kind > LimiterConfig::kStalenessBudget || !is_count(limiter.min_size) || has_nan) return "a limiter";
  return nullptr;
}

}  // namespace

std::vector<SavedArea> saved_areas(const Region& r) {
  const Geometry& g = *r.geometry;
  std::vector<SavedArea> areas = {
      {"page words", 0, EntryOf::kPage, bytes_of(r.words), sizeof(uint64_t), g.num_pages, false},
      {"pages", 0, EntryOf::kPage, bytes_of(r.pages), sizeof(PageRecord), g.num_pages, false},
      {"tails", 0, EntryOf::kPage, bytes_of(r.tails), sizeof(uint64_t) * g.tail_words, g.num_pages, false},
      {"lanes", 0, EntryOf::kLane, bytes_of(r.lanes), sizeof(Lane), g.max_lanes, false},
  };
  for (uint32_t i = 0; i < r.num_indexes; ++i) add_index(r, i, &areas);
  return areas;
}

SavedNumbers read_numbers(Held& held) {
  const Region& r = held.region;
  const Header& h = *r.header;
  SavedNumbers numbers{};
  numbers.next_order = h.next_order.load(kRelaxed);
  numbers.next_ticket = h.next_ticket.load(kRelaxed);
  numbers.next_uid = h.next_uid.load(kRelaxed);
  numbers.policy_version = h.policy_version.load(kRelaxed);
  numbers.num_raised = h.num_raised.load(kRelaxed);
  numbers.base_version = h.base_version.load(kRelaxed);
  numbers.now_s = held.now_s();
  const auto* counters = reinterpret_cast<const std::atomic<uint64_t>*>(&h.counters);
  for (size_t k = 0; k < kNumCounters; ++k) numbers.counters[k] = counters[k].load(kRelaxed);
  numbers.num_indexes = r.num_indexes;
  for (uint32_t i = 0; i < r.num_indexes; ++i) numbers.indexes[i] = read_index(held, i);
  return numbers;
}

const char* wrong_number(const Region& r, const SavedNumbers& numbers) {
  if (numbers.num_indexes != r.num_indexes) return "the number of indexes";
  if (!is_number(numbers.next_order) || !is_number(numbers.next_ticket) || !is_number(numbers.next_uid))
    return "the next numbers of pages and lanes";
  if (numbers.policy_version > ~uint32_t{0} || !is_number(numbers.num_raised) || numbers.num_raised % 2 != 0 ||
      numbers.base_version < INT32_MIN || numbers.base_version > int64_t{~uint32_t{0}} || !std::isfinite(numbers.now_s))
    return "a version or a time";
  for (uint32_t i = 0; i < numbers.num_indexes; ++i)
    if (const char* wrong = wrong_in_index(numbers.indexes[i])) return wrong;
  return nullptr;
}

void write_numbers(Held& held, const SavedNumbers& numbers) {
  const Region& r = held.region;
  Header& h = *r.header;
  h.next_order.store(numbers.next_order);
  h.next_ticket.store(numbers.next_ticket);
  h.next_uid.store(numbers.next_uid);
  h.policy_version.store(static_cast<uint32_t>(numbers.policy_version));
  h.num_raised.store(numbers.num_raised);
  h.base_version.store(numbers.base_version);
  auto* counters = reinterpret_cast<std::atomic<uint64_t>*>(&h.counters);
  for (size_t k = 0; k < kNumCounters; ++k) counters[k].store(numbers.counters[k]);
  for (uint32_t i = 0; i < numbers.num_indexes; ++i) write_index(held, i, numbers.indexes[i]);
}

}  // namespace relive
