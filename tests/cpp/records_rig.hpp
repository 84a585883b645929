// A table with an explicit index and a naive model side by side. The model is a list of items, each a list of row keys.
#pragma once

#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "core_rig.hpp"
#include "relive/index/kinds.hpp"

namespace rig {

struct RecordSpec {
  uint64_t max_items = 20;
  std::vector<std::pair<uint32_t, uint32_t>> windows = {{12, 1}, {12, 1}, {5, 4}};  // length and stride of each
  bool prioritized = true;
  Initial initial = Initial::kNumber;
  uint32_t max_times = 0;
};

inline IndexConfig explicit_index(const RecordSpec& spec) {
  IndexConfig index{};
  std::snprintf(index.name, sizeof index.name, "items");
  index.n_step = 1;
  index.gamma = kGamma;
  index.sampling = spec.prioritized ? Sampling::kPrioritized : Sampling::kUniform;
  index.initial = spec.initial;
  index.initial_number = 1.0;
  index.priority_exponent = 0.6;
  index.limiter = make_min_size(1);
  index.max_times_sampled = spec.max_times;
  for (uint32_t& frames : index.stack) frames = 1;
  index.map = LeafMap::kExplicit;
  index.max_items = spec.max_items;
  index.num_windows = static_cast<uint32_t>(spec.windows.size());
  for (size_t w = 0; w < spec.windows.size(); ++w) {
    if (spec.windows.size() > 1) std::snprintf(index.windows[w].name, sizeof index.windows[w].name, "w%zu", w);
    std::tie(index.windows[w].length, index.windows[w].stride) = spec.windows[w];
  }
  return index;
}

inline constexpr size_t kMarkBytes = 21;

// Writes the own columns of the k-th item.
inline void write_own(std::byte* mark, double* weight, size_t k) {
  write_cell(mark, kMarkBytes, k, 7, 7, 7);
  *weight = static_cast<double>(k) / 3.0;
}

inline Spec with_items(Spec spec, const RecordSpec& items) {
  spec.explicit_indexes.push_back(explicit_index(items));
  spec.item_columns = {column("mark", "|u1", {kMarkBytes}, 1, ColumnKind::kStep),
                       column("weight", "<f8", {}, 8, ColumnKind::kStep)};
  return spec;
}

struct ItemRow {
  int64_t key;
  uint64_t tag;  // of the lane
  size_t episode, step;
};

struct ModelItem {
  uint64_t number = 0;                     // in order of insertion
  size_t own = 0;                          // number that determines its own columns
  std::vector<std::vector<ItemRow>> rows;  // of each window
  std::vector<ItemRow> spanned;            // by any window
  double mass = 0.0;
  uint32_t uses = 0;
  bool is_removed = false, is_awaiting = false;
};

class RecordsRig {
 public:
  RecordsRig(const Spec& spec, const RecordSpec& items)
      : rig(with_items(spec, items)), spec_(items), has_state_(spec.has_state), has_late_(spec.has_late) {
    index_ = static_cast<uint32_t>(spec.indexes.size());
    std::vector<std::string> names = {"mark", "weight"};
    for (size_t w = 0; w < items.windows.size(); ++w) {
      const std::string before = items.windows.size() > 1 ? "w" + std::to_string(w) + "/" : "";
      for (const char* name :
           {"action", "mask", "reward", "num_steps", "lane", "episode_step", "first", "policy_version", "observation"})
        if (has_state_ || name != std::string("observation")) names.push_back(before + name);
    }
    CHECK(relive::make_plan(table(), index_, names, &plan_).ok());
  }

  Table& table() { return *rig.table; }
  const Region& region() { return rig.table->region(); }
  uint32_t index() const { return index_; }

  // num_rows rows of the lane from a key on, by the model; empty if one of them is no step.
  std::vector<ItemRow> rows_of(int64_t key, uint32_t num_rows) const;
  // Inserts items of these windows, which must succeed. Returns their keys.
  std::vector<int64_t> insert(const std::vector<std::vector<WindowRows>>& items,
                              const std::vector<float>& priorities = {});
  Status try_insert(const std::vector<std::vector<WindowRows>>& items, const std::vector<float>& priorities,
                    std::vector<int64_t>* keys, size_t* stored);
  std::vector<int64_t> sample(size_t num_items, const Where* where = nullptr);
  void update(const std::vector<int64_t>& keys, const std::vector<float>& priorities);
  void remove(const std::vector<int64_t>& keys);
  // Completes the late columns of these rows. Rows that became tails under an item count as gone.
  void complete(const std::vector<int64_t>& keys);
  // After the death of a completer: takes over into the model which rows it has filled.
  void look_what_is_filled();
  // Compares every item of the table with the model; runs check().
  void verify();

  bool is_row_there(int64_t key);
  bool is_alive(const ModelItem& item);
  bool is_live(const ModelItem& item) {
    return is_alive(item) && !item.is_awaiting && is_filled(item) &&
           (spec_.max_times == 0 || item.uses < spec_.max_times);
  }
  bool is_filled(const ModelItem& item) const {
    const auto has_all = [&](const auto& rows) {
      return std::all_of(rows.begin(), rows.end(), [&](const ItemRow& row) { return filled_.count(row.key) != 0; });
    };
    return !has_late_ || std::all_of(item.rows.begin(), item.rows.end(), has_all);
  }
  int64_t num_live() {
    int64_t count = 0;
    for (const auto& [key, item] : items) count += is_live(item) ? 1 : 0;
    return count;
  }

  Rig rig;
  std::map<int64_t, ModelItem> items;
  std::vector<int64_t> item_keys;  // in order of insertion
  uint64_t lost = 0;               // records that deaths and skips took out of the ring
  uint32_t stride(size_t window) const { return spec_.windows[window].second; }
  uint32_t span(const WindowRows& window, size_t w) const {
    return static_cast<uint32_t>(window.num_rows - 1) * stride(w) + 1;
  }

 private:
  // The same window in another form: by its last row, or by the list of its keys.
  WindowRows in_other_words(const WindowRows& window, size_t w, std::vector<int64_t>* rows);
  void check_rows(const std::vector<std::vector<std::byte>>& out, size_t place, int64_t key);
  std::vector<std::vector<std::byte>> buffers(size_t num_items, std::vector<std::byte*>* pointers) const {
    std::vector<std::vector<std::byte>> out;
    for (const Output& output : plan_.outputs) out.emplace_back(output.item_bytes * num_items, std::byte{0xee});
    for (auto& buffer : out) pointers->push_back(buffer.data());
    return out;
  }

  RecordSpec spec_;
  bool has_state_;
  bool has_late_;
  std::map<int64_t, ItemRow> known_rows_;  // of items
  std::set<int64_t> filled_;               // keys of rows
  uint32_t index_ = 0;
  GatherPlan plan_;
};

inline std::vector<ItemRow> RecordsRig::rows_of(int64_t key, uint32_t num_rows) const {
  const auto found = rig.places.find(key);
  if (found == rig.places.end()) return {};
  const ModelLane& lane = rig.lanes[found->second.lane];
  size_t episode = found->second.episode, step = found->second.step;
  std::vector<ItemRow> rows;
  while (rows.size() < num_rows) {
    if (step == lane.episodes[episode].steps.size()) {
      if (has_state_ || episode + 1 >= lane.episodes.size()) return {};  // a tail, or no episode yet
      ++episode, step = 0;
      continue;
    }
    const int64_t at = lane.episodes[episode].steps[step].key;
    if (!rig.is_step_alive(at)) return {};
    rows.push_back({at, lane.tag, episode, step++});
  }
  return rows;
}

inline bool RecordsRig::is_row_there(int64_t key) {
  const Region& r = region();
  const uint64_t slot = r.key_slot(key), page = r.page_of(slot), word = r.words[page].load();
  if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return false;
  const Range range = Range::unpack(r.pages[page].range.load());
  return r.offset_of(slot) >= range.step_begin && r.offset_of(slot) < range.step_end;
}

inline bool RecordsRig::is_alive(const ModelItem& item) {
  if (item.is_removed || item_keys.size() + lost - item.number > spec_.max_items) return false;
  return std::all_of(item.spanned.begin(), item.spanned.end(),
                     [&](const ItemRow& row) { return is_row_there(row.key); });
}

inline WindowRows RecordsRig::in_other_words(const WindowRows& window, size_t w, std::vector<int64_t>* rows) {
  if (window.num_rows < 1 || window.num_rows > spec_.windows[w].first) return window;
  const std::vector<ItemRow> spanned = rows_of(window.key, span(window, w));
  if (spanned.empty()) return window;
  WindowRows other = window;
  const uint64_t way = rig.below(4);
  if (way % 2 == 1) other = {spanned.back().key, -window.num_rows};
  if (way >= 2) {
    for (size_t k = 0; k < spanned.size(); k += stride(w)) rows->push_back(spanned[k].key);
    other.rows = rows->data();
  }
  return other;
}

inline Status RecordsRig::try_insert(const std::vector<std::vector<WindowRows>>& of,
                                     const std::vector<float>& priorities, std::vector<int64_t>* keys, size_t* stored) {
  const size_t num_windows = spec_.windows.size();
  std::vector<WindowRows> windows(of.size() * num_windows, WindowRows{0, 0});
  std::vector<std::vector<int64_t>> rows(windows.size());
  std::vector<std::byte> marks(of.size() * kMarkBytes);
  std::vector<double> weights(of.size());
  for (size_t k = 0; k < of.size(); ++k) {
    for (size_t w = 0; w < of[k].size(); ++w)
      windows[k * num_windows + w] = in_other_words(of[k][w], w, &rows[k * num_windows + w]);
    write_own(marks.data() + k * kMarkBytes, &weights[k], item_keys.size() + k);
  }
  keys->assign(of.size(), -1);
  const std::byte* const columns[] = {marks.data(), reinterpret_cast<const std::byte*>(weights.data())};
  const NewItems asked{of.size(), windows.data(), priorities.empty() ? nullptr : priorities.data(), columns};
  return relive::insert_items(table(), index_, asked, 1.0, keys->data(), stored);
}

inline std::vector<int64_t> RecordsRig::insert(const std::vector<std::vector<WindowRows>>& of,
                                               const std::vector<float>& priorities) {
  std::vector<int64_t> keys;
  size_t stored = 0;
  CHECK(try_insert(of, priorities, &keys, &stored).ok());
  CHECK_EQ(stored, of.size());
  const IndexConfig& config = region().header->indexes[index_];
  for (size_t k = 0; k < stored; ++k) {
    CHECK(items.count(keys[k]) == 0 && !region().is_row_key(keys[k]) && region().is_item_key(index_, keys[k]));
    ModelItem item;
    item.number = item_keys.size() + lost;
    item.own = item_keys.size();
    item.rows.resize(spec_.windows.size());
    for (size_t w = 0; w < of[k].size(); ++w) {
      if (of[k][w].num_rows == 0) continue;
      const std::vector<ItemRow> rows = rows_of(of[k][w].key, span(of[k][w], w));
      CHECK(!rows.empty());
      item.spanned.insert(item.spanned.end(), rows.begin(), rows.end());
      for (const ItemRow& row : rows) known_rows_[row.key] = row;
      for (size_t row = 0; row < rows.size(); row += stride(w)) item.rows[w].push_back(rows[row]);
    }
    item.is_awaiting = priorities.empty() && spec_.prioritized && spec_.initial == Initial::kGiven;
    item.mass = !spec_.prioritized ? 1.0 : leaf_of(config, priorities.empty() ? 1.0f : priorities[k]);
    items[keys[k]] = item;
    item_keys.push_back(keys[k]);
  }
  return keys;
}

inline void RecordsRig::check_rows(const std::vector<std::vector<std::byte>>& out, size_t place, int64_t key) {
  const ModelItem& item = items.at(key);
  for (size_t o = 0; o < plan_.outputs.size(); ++o) {
    const Output& output = plan_.outputs[o];
    const std::byte* at = out[o].data() + place * output.item_bytes;
    const std::vector<ItemRow>& rows = item.rows[output.window];
    if (output.source == Source::kNumSteps) {
      CHECK_EQ(*reinterpret_cast<const int64_t*>(at), static_cast<int64_t>(rows.size()));
      continue;
    }
    if (output.source == Source::kItemColumn) {
      std::byte mark[kMarkBytes];
      double weight = 0.0;
      write_own(mark, &weight, item.own);
      const void* own = output.name == "mark" ? static_cast<const void*>(mark) : &weight;
      CHECK_EQ(std::memcmp(own, at, output.item_bytes), 0);
      continue;
    }
    const std::string name = output.name.substr(output.name.find('/') + 1);  // without the window's name
    const size_t most = static_cast<size_t>(output.shape[0]), n = output.item_bytes / most;
    std::vector<std::byte> expected(n);
    for (size_t k = 0; k < most; ++k, at += n) {
      std::fill(expected.begin(), expected.end(), std::byte{0});
      if (k < rows.size()) {
        const ItemRow& row = rows[k];
        const auto put = [&](auto value) { std::memcpy(expected.data(), &value, sizeof value); };
        if (name == "lane")
          put(static_cast<int64_t>(row.tag));
        else if (name == "mask")
          put(uint8_t{1});
        else if (name == "episode_step")
          put(static_cast<int64_t>(row.step));
        else if (name == "first")
          put(static_cast<uint8_t>(row.step == 0));
        else if (name == "reward")
          put(reward_of(row.tag, row.episode, row.step));
        else if (name != "policy_version")
          write_cell(expected.data(), n, row.tag, row.episode, row.step, output.column);
      }
      if (std::memcmp(expected.data(), at, n) == 0) continue;
      harness::fail(
          __FILE__, __LINE__,
          output.name + " of row " + std::to_string(k) + " of item " + std::to_string(item.number) + " differs");
      return;
    }
  }
}

inline std::vector<int64_t> RecordsRig::sample(size_t num_items, const Where* where) {
  std::vector<std::byte*> pointers;
  const auto out = buffers(num_items, &pointers);
  std::vector<int64_t> got(num_items);
  std::vector<double> probabilities(num_items);
  int64_t live = 0;
  DrawRequest request;
  request.index = index_;
  request.num_items = num_items;
  request.where = where;
  request.plan = &plan_;
  request.out = pointers.data();
  request.keys = got.data();
  request.probabilities = probabilities.data();
  request.num_live_items = &live;
  const Status status = relive::sample(table(), request, 0.0);
  if (!status.ok()) {
    CHECK(status.code() == Code::kDeadlineExceeded);
    return {};
  }
  for (size_t k = 0; k < num_items; ++k) {
    CHECK(items.count(got[k]) == 1);
    if (items.count(got[k]) == 0) continue;
    CHECK(is_live(items[got[k]]));
    check_rows(out, k, got[k]);
    items[got[k]].uses += spec_.max_times != 0 ? 1 : 0;
  }
  return got;
}

inline void RecordsRig::update(const std::vector<int64_t>& keys, const std::vector<float>& priorities) {
  const IndexConfig& config = region().header->indexes[index_];
  int64_t applied = 0, expected = 0;
  for (size_t k = 0; k < keys.size(); ++k) {
    ModelItem& item = items.at(keys[k]);
    const bool is_used_up = spec_.max_times != 0 && item.uses >= spec_.max_times;
    if (!is_alive(item) || is_used_up) continue;
    ++expected;
    item.is_awaiting = false;
    item.mass = leaf_of(config, priorities[k]);
  }
  CHECK(relive::update_priorities(table(), index_, keys.data(), priorities.data(), keys.size(), &applied).ok());
  CHECK_EQ(applied, expected);
}

inline void RecordsRig::remove(const std::vector<int64_t>& keys) {
  int64_t deleted = 0, expected = 0;
  for (int64_t key : keys) {
    ModelItem& item = items.at(key);
    expected += is_alive(item) ? 1 : 0;
    item.is_removed = true;
  }
  CHECK(relive::delete_items(table(), keys.data(), keys.size(), &deleted).ok());
  CHECK_EQ(deleted, expected);
}

inline void RecordsRig::complete(const std::vector<int64_t>& keys) {
  std::vector<int64_t> of_steps, of_tails;
  std::vector<float> rewards;
  for (int64_t key : keys) {
    const bool is_step = rig.places.count(key) != 0;
    if (is_row_there(key)) filled_.insert(key);
    (is_step ? of_steps : of_tails).push_back(key);
    if (is_step) continue;
    const ItemRow& row = known_rows_.at(key);
    rewards.push_back(reward_of(row.tag, row.episode, row.step));
  }
  rig.complete(of_steps);
  int64_t applied = 0;
  CHECK(relive::complete_rows(table(), of_tails.data(), of_tails.size(),
                              reinterpret_cast<const std::byte*>(rewards.data()), sizeof(float) * rewards.size(),
                              &applied)
            .ok());
  CHECK_EQ(applied, 0);
}

inline void RecordsRig::look_what_is_filled() {
  const Region& r = region();
  for (auto& [key, place] : rig.places) {
    if (!is_row_there(key)) continue;
    const bool is_filled = (r.head_of(r.key_slot(key)).load() & kLateBit) == 0;
    rig.lanes[place.lane].episodes[place.episode].steps[place.step].is_filled = is_filled;
    if (!is_filled) filled_.erase(key);
    if (is_filled) filled_.insert(key);
  }
}

inline void RecordsRig::verify() {
  const Status checked = relive::check(table());
  if (!checked.ok())
    harness::fail(__FILE__, __LINE__, "check(): " + (checked.fields().empty() ? "?" : checked.fields()[0].text));
  const size_t first = item_keys.size() > 100 ? item_keys.size() - 100 : 0;
  const std::vector<int64_t> asked(item_keys.begin() + static_cast<std::ptrdiff_t>(first), item_keys.end());
  std::vector<std::byte*> pointers;
  const auto out = buffers(asked.size(), &pointers);
  std::vector<uint8_t> present(asked.size());
  CHECK(relive::gather(table(), plan_, asked.data(), asked.size(), pointers.data(), present.data()).ok());
  for (size_t k = 0; k < asked.size(); ++k) {
    const ModelItem& item = items.at(asked[k]);
    CHECK_EQ(static_cast<bool>(present[k]), is_alive(item) && !item.is_awaiting && is_filled(item));
    if (present[k]) check_rows(out, k, asked[k]);
  }
  double mass = 0.0;
  for (const auto& [key, item] : items) mass += is_live(item) ? item.mass : 0.0;
  TableStats stats;
  CHECK(relive::stats(table(), &stats).ok());
  CHECK(std::abs(stats.total_mass.at(index_) - mass) < 1e-6);
  CHECK_EQ(relive::num_items(table(), index_), num_live());
}

}  // namespace rig
