// A table and a naive model of the table side by side. The model is a list of episodes, and determines the content of
// every item. Cells are functions of (lane, episode, step, column), so every byte that a table delivers can be checked.
#pragma once

#include <cstdlib>

#include "core_model.hpp"

namespace rig {

class Rig {
 public:
  explicit Rig(const Spec& spec) : spec_(spec), random_(spec.seed + 1) {
    const Status status = Table::create(make_config(spec), "", &table);
    CHECK_EQ(static_cast<uint32_t>(status.code()), 0u);
    open_writer();
  }

  void open_writer() {
    const Status status = Writer::open(table.get(), spec_.num_lanes, &writer);
    CHECK_EQ(static_cast<uint32_t>(status.code()), 0u);
    current_.clear();
    for (uint32_t m = 0; m < spec_.num_lanes; ++m) {
      current_.push_back(lanes.size());
      lanes.push_back({});
      lanes.back().tag = lanes.size();
      go_on(lanes.size() - 1);
    }
  }

  // Writes one block for the given lanes of the writer; ends[t * M + m]: 0 goes on, 1 terminated, 2 truncated.
  Code write(const std::vector<int32_t>& which, size_t num_rows, const std::vector<int>& ends, NextGiven given,
             const std::vector<float>& priorities = {});
  Code end_episode(const std::vector<int32_t>& which, bool terminated, bool with_next);
  void close_writer();
  // Another process ended the writer's lanes, as after a death; their last row never became a transition.
  void forget_writer() {
    for (size_t position : current_) {
      ModelLane& lane = lanes[position];
      ModelEpisode& episode = lane.episodes.back();
      lane.rows += spec_.has_state && lane.has_seam ? 1 : 0;
      episode.ended = !episode.steps.empty();
    }
    dead_.push_back(std::move(writer));
  }
  // The model goes on with a table that was loaded from a save of this one: the load has closed the writer's lanes.
  // Returns the table before it.
  std::unique_ptr<Table> go_on_with(std::unique_ptr<Table> loaded) {
    end_lanes(last_rows_alive());
    dead_.push_back(std::move(writer));
    table.swap(loaded);
    return loaded;
  }
  void remove(const std::vector<int64_t>& keys);
  // Completes these rows with their rewards, and checks the number of rows that were applied.
  void complete(const std::vector<int64_t>& keys);
  // Compares every item of the newest `most` keys with the model; runs check().
  void verify(size_t most = 300);
  std::vector<int64_t> sample(uint32_t index, size_t num_items, const Where* where = nullptr);
  bool is_step_alive(int64_t key) const;
  std::string where(int64_t key) const;
  bool can_end(int32_t m) const { return !lane_of(m).episodes.back().steps.empty(); }
  bool has_seam(int32_t m) const { return lane_of(m).has_seam; }
  // The key of one of the newest `most` steps; at least one exists.
  int64_t some_key(size_t most) { return keys[keys.size() - 1 - below(std::min(most, keys.size()))]; }
  void move_pages() {
    uint64_t moved = 0;
    CHECK(relive::move_all_pages(*table, &moved).ok());
  }
  uint64_t below(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }

  std::unique_ptr<Table> table;
  std::unique_ptr<Writer> writer;
  std::vector<ModelLane> lanes;
  std::vector<int64_t> keys;  // in order of appending
  std::map<int64_t, Place> places;
  bool has_holes = false;  // items were used up, so pages may be freed early

  GatherPlan make_plan(uint32_t index);
  void check_item(uint32_t index, const GatherPlan& plan, const std::vector<std::vector<std::byte>>& out, size_t row,
                  int64_t key);

 private:
  ModelLane& lane_of(int32_t m) { return lanes[current_[static_cast<size_t>(m)]]; }
  const ModelLane& lane_of(int32_t m) const { return lanes[current_[static_cast<size_t>(m)]]; }
  bool is_complete(const IndexSpec& index, const Place& place) const;
  void go_on(size_t position);
  std::vector<bool> last_rows_alive() const;  // of each lane of the writer
  void end_lanes(const std::vector<bool>& last_alive);
  uint64_t first_row_alive(size_t position) const;
  void end_in_model(ModelLane& lane, bool with_tail_row, bool zeros);
  size_t bytes_of(size_t c) const { return table->region().columns[c].num_bytes; }

  static constexpr uint64_t kNoRow = ~uint64_t{0};

  Spec spec_;
  std::mt19937_64 random_;
  std::vector<size_t> current_;  // lane of the writer -> position in lanes
  std::vector<std::unique_ptr<Writer>> dead_;
  std::map<uint32_t, size_t> last_of_slot_;  // lane slot -> position in lanes
};

// Runs a programme of operations with num_seeds seeds, or up to the first that fails.
template <class Programme>
void run_with_seeds(Spec spec, int num_seeds, Programme&& programme) {
#if defined(RELIVE_TSAN) || defined(__SANITIZE_ADDRESS__)
  num_seeds = num_seeds / 5 + 1;  // one thread only: the sanitizers find races and stray bytes, not logic errors
#endif
  if (harness::is_short()) num_seeds = (num_seeds + 1) / 2;
  if (const char* times = std::getenv("RELIVE_SEEDS")) num_seeds *= std::atoi(times);  // a longer search
  for (int seed = 0; seed < num_seeds && harness::failures() == 0; ++seed) {
    spec.seed = static_cast<uint64_t>(seed);
    programme(spec);
  }
}

// Reports the operation of the programme that failed.
inline void fail_at(const Spec& spec, int operation, uint64_t kind) {
  harness::fail(__FILE__, __LINE__,
                "seed " + std::to_string(spec.seed) + ", operation " + std::to_string(operation) + " of kind " +
                    std::to_string(kind));
}

// If another lane left a page with room, the new lane continues in it, after its rows.
inline void Rig::go_on(size_t position) {
  const Region& r = table->region();
  ModelLane& lane = lanes[position];
  for (uint32_t slot = 0; slot < r.geometry->max_lanes; ++slot) {
    const Lane& there = r.lanes[slot];
    if (there.state.load() != LaneState::kLive || there.uid.load() != lane.tag) continue;
    if (there.open.load() != 0) {
      lane.before = last_of_slot_.at(slot);
      lane.rows = lanes[lane.before].rows;
      lane.episodes.back().first_row = lane.rows;
    }
    last_of_slot_[slot] = position;
    return;
  }
  harness::fail(__FILE__, __LINE__, "no lane of the table is this writer's");
}

// The first existing row of the lane and of the lanes before it in its page; 0 if all rows exist.
inline uint64_t Rig::first_row_alive(size_t position) const {
  const ModelLane& lane = lanes[position];
  if (lane.before != ModelLane::kNone)
    if (const uint64_t row = first_row_alive(lane.before); row != kNoRow) return row;
  for (const ModelEpisode& episode : lane.episodes)
    for (size_t step = 0; step < episode.steps.size(); ++step)
      if (is_step_alive(episode.steps[step].key)) return episode.first_row + step;
  return kNoRow;
}

inline void Rig::end_in_model(ModelLane& lane, bool with_tail_row, bool zeros) {
  ModelEpisode& episode = lane.episodes.back();
  episode.ended = true;
  episode.has_zero_tail = zeros;
  if (with_tail_row && spec_.has_state) ++lane.rows;
  lane.has_seam = false;
  lane.episodes.push_back({});
  lane.episodes.back().first_row = lane.rows;
}

inline Code Rig::write(const std::vector<int32_t>& which, size_t num_rows, const std::vector<int>& ends,
                       NextGiven given, const std::vector<float>& priorities) {
  const size_t num_lanes = which.size();
  const size_t num_columns = table->region().geometry->num_columns;
  const size_t total = num_rows * num_lanes;
  std::vector<std::vector<std::byte>> cells(num_columns), nexts(num_columns);
  std::vector<uint8_t> terminated(total), truncated(total);
  std::vector<float> discounts(total);
  const bool last_row = given == NextGiven::kLastRow;
  for (size_t c = 0; c < num_columns; ++c) {
    cells[c].resize((total + num_lanes) * bytes_of(c));
    nexts[c].resize(total * bytes_of(c));
  }
  for (size_t m = 0; m < num_lanes; ++m) {
    const ModelLane& lane = lane_of(which[m]);
    size_t episode = lane.episodes.size() - 1, step = lane.episodes.back().steps.size();
    for (size_t t = 0; t < num_rows; ++t) {
      const size_t at = t * num_lanes + m;
      terminated[at] = ends[at] == 1;
      truncated[at] = ends[at] == 2;
      discounts[at] = ends[at] == 1 ? 0.0f : (mix(lane.tag + step) % 5 == 0 ? 0.5f : 1.0f);
      for (size_t c = 0; c < num_columns; ++c) {
        const size_t n = bytes_of(c);
        write_cell(cells[c].data() + at * n, n, lane.tag, episode, step, c);
        write_cell(nexts[c].data() + at * n, n, lane.tag, episode, step + 1, c);
        if (t + 1 == num_rows) write_cell(cells[c].data() + (at + num_lanes) * n, n, lane.tag, episode, step + 1, c);
        if (std::strcmp(table->region().columns[c].name, "reward") != 0) continue;
        const float reward = reward_of(lane.tag, episode, step);
        std::memcpy(cells[c].data() + at * n, &reward, sizeof reward);
      }
      ++step;
      if (ends[at] != 0) ++episode, step = 0;
    }
  }
  StepBlock block;
  block.num_rows = num_rows;
  block.num_lanes = num_lanes;
  block.lanes = which.data();
  block.has_next = given == NextGiven::kYes;
  block.has_last_state = last_row && spec_.has_state;
  block.columns.resize(num_columns);
  block.next.resize(num_columns);
  const auto stride = [&](size_t num_bytes) {
    return std::pair<int64_t, int64_t>(static_cast<int64_t>(num_bytes * num_lanes), static_cast<int64_t>(num_bytes));
  };
  const auto cells_of = [&](const void* base, size_t num_bytes) {
    const auto [row, lane] = stride(num_bytes);
    return Cells{static_cast<const std::byte*>(base), row, lane};
  };
  for (size_t c = 0; c < num_columns; ++c) {
    block.columns[c] = cells_of(cells[c].data(), bytes_of(c));
    if (block.has_next) block.next[c] = cells_of(nexts[c].data(), bytes_of(c));
  }
  block.terminated = cells_of(terminated.data(), 1);
  block.truncated = cells_of(truncated.data(), 1);
  block.discount = cells_of(discounts.data(), sizeof(float));
  if (!priorities.empty()) block.priority = cells_of(priorities.data(), sizeof(float));
  std::vector<int64_t> got(total, -1);
  const Status status = writer->write(block, 1.0, got.data());
  if (!status.ok()) return status.code();
  for (size_t m = 0; m < num_lanes; ++m) {
    ModelLane& lane = lane_of(which[m]);
    for (size_t t = 0; t < num_rows; ++t) {
      const size_t at = t * num_lanes + m;
      ModelEpisode& episode = lane.episodes.back();
      const int64_t key = got[at];
      CHECK(key > 0 && places.count(key) == 0);
      places[key] = {current_[static_cast<size_t>(which[m])], lane.episodes.size() - 1, episode.steps.size()};
      episode.steps.push_back({key, ends[at] == 1, ends[at] == 2, discounts[at], false, !spec_.has_late});
      ++lane.rows;
      const bool is_known = block.has_next || (t + 1 == num_rows && block.has_last_state);
      lane.has_seam = is_known && spec_.has_state;
      if (ends[at] != 0) end_in_model(lane, true, !is_known);
    }
  }
  keys.insert(keys.end(), got.begin(), got.end());
  return Code::kOk;
}

inline Code Rig::end_episode(const std::vector<int32_t>& which, bool terminated, bool with_next) {
  const size_t num_columns = table->region().geometry->num_columns;
  std::vector<std::vector<std::byte>> nexts(num_columns);
  StepBlock block;
  block.num_rows = 1;
  block.num_lanes = which.size();
  block.lanes = which.data();
  block.has_next = with_next;
  block.columns.resize(num_columns);
  block.next.resize(num_columns);
  for (size_t c = 0; c < num_columns; ++c) {
    const size_t n = bytes_of(c);
    nexts[c].resize(which.size() * n);
    for (size_t m = 0; m < which.size(); ++m) {
      const ModelLane& lane = lane_of(which[m]);
      write_cell(nexts[c].data() + m * n, n, lane.tag, lane.episodes.size() - 1, lane.episodes.back().steps.size(), c);
    }
    if (with_next) block.next[c] = Cells{nexts[c].data(), 0, static_cast<int64_t>(n)};
  }
  const Status status = writer->end_episode(block, terminated, 1.0);
  if (!status.ok()) return status.code();
  for (int32_t m : which) {
    ModelLane& lane = lane_of(m);
    if (lane.episodes.back().steps.empty()) continue;
    ModelStep& last = lane.episodes.back().steps.back();
    (terminated ? last.terminated : last.truncated) = true;
    if (terminated) last.discount = 0.0f;
    end_in_model(lane, true, !with_next && !lane.has_seam);
  }
  return Code::kOk;
}

inline void Rig::close_writer() {
  const std::vector<bool> last_alive = last_rows_alive();
  CHECK(writer->close().ok());
  end_lanes(last_alive);
}

inline std::vector<bool> Rig::last_rows_alive() const {
  std::vector<bool> alive;
  for (size_t position : current_) {
    const ModelEpisode& episode = lanes[position].episodes.back();
    alive.push_back(!episode.steps.empty() && is_step_alive(episode.steps.back().key));
  }
  return alive;
}

inline void Rig::end_lanes(const std::vector<bool>& last_alive) {
  for (size_t m = 0; m < current_.size(); ++m) {
    ModelLane& lane = lanes[current_[m]];
    ModelEpisode& episode = lane.episodes.back();
    if (episode.steps.empty()) continue;
    lane.rows += spec_.has_state && lane.has_seam ? 1 : 0;
    if (spec_.has_state && !lane.has_seam) {  // the last row becomes the state after the row before it
      places.erase(episode.steps.back().key);
      keys.erase(std::find(keys.begin(), keys.end(), episode.steps.back().key));
      episode.steps.pop_back();
      if (!last_alive[m]) continue;
    }
    episode.ended = true;
  }
}

inline bool Rig::is_step_alive(int64_t key) const {
  const Region& r = table->region();
  const uint64_t slot = r.key_slot(key);
  const uint64_t word = r.words[r.page_of(slot)].load();
  if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return false;
  const Range range = Range::unpack(r.pages[r.page_of(slot)].range.load());
  return r.offset_of(slot) >= range.step_begin && r.offset_of(slot) < range.step_end &&
         !r.is_tail(r.page_of(slot), r.offset_of(slot));
}

inline bool Rig::is_complete(const IndexSpec& index, const Place& place) const {
  const ModelLane& lane = lanes[place.lane];
  const ModelEpisode& episode = lane.episodes[place.episode];
  const size_t length = episode.steps.size();
  const size_t end = place.step + index.n_step;
  for (size_t step = place.step; step < std::min(end, length); ++step)
    if (!episode.steps[step].is_filled) return false;
  if (episode.ended) return true;
  if (!spec_.has_state) return end <= length;
  return end < length || (end == length && lane.has_seam);
}

inline GatherPlan Rig::make_plan(uint32_t index) {
  std::vector<std::string> names = {"action",       "reward", "discount",  "terminated", "truncated",
                                    "episode_step", "first",  "num_steps", "lane"};
  if (spec_.has_state) names.insert(names.end(), {"observation", "next_observation"});
  if (spec_.has_pixels) names.insert(names.end(), {"pixels", "next_pixels"});
  GatherPlan plan;
  CHECK(relive::make_plan(*table, index, names, &plan).ok());
  return plan;
}

inline void Rig::check_item(uint32_t index, const GatherPlan& plan, const std::vector<std::vector<std::byte>>& out,
                            size_t row, int64_t key) {
  const IndexSpec& spec = spec_.indexes[index];
  const Place place = places.at(key);
  const ModelLane& lane = lanes[place.lane];
  const ModelEpisode& episode = lane.episodes[place.episode];
  const size_t length = episode.steps.size();
  const size_t m = episode.ended ? std::min<size_t>(spec.n_step, length - place.step) : spec.n_step;
  double sum = 0.0, product = 1.0;
  for (size_t k = 0; k < m; ++k) {
    sum += product * reward_of(lane.tag, place.episode, place.step + k);
    product *= kGamma * static_cast<double>(episode.steps[place.step + k].discount);
  }
  const ModelStep& last = episode.steps[place.step + m - 1];
  const bool at_end = episode.ended && place.step + m == length;
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    const std::byte* got = out[o].data() + row * output.item_bytes;
    const auto integer = [&] { return *reinterpret_cast<const int64_t*>(got); };
    const auto number = [&] { return *reinterpret_cast<const float*>(got); };
    if (output.name == "reward") {
      CHECK_EQ(number(), static_cast<float>(sum));
    } else if (output.name == "discount") {
      CHECK_EQ(number(), static_cast<float>(product));
    } else if (output.name == "terminated") {
      CHECK_EQ(static_cast<bool>(got[0]), last.terminated);
    } else if (output.name == "truncated") {
      CHECK_EQ(static_cast<bool>(got[0]), last.truncated || (at_end && !last.terminated));
    } else if (output.name == "episode_step") {
      CHECK_EQ(integer(), static_cast<int64_t>(place.step));
    } else if (output.name == "first") {
      CHECK_EQ(static_cast<bool>(got[0]), place.step == 0);
    } else if (output.name == "num_steps") {
      CHECK_EQ(integer(), static_cast<int64_t>(m));
    } else if (output.name == "lane") {
      CHECK_EQ(integer(), static_cast<int64_t>(lane.tag));
    } else {
      const size_t n = bytes_of(output.column);
      std::vector<std::byte> expected(n);
      const size_t newest = place.step + (output.source == Source::kNext ? m : 0);
      for (size_t back = output.stack; back-- > 0; got += n) {
        const bool is_before = back > newest;
        std::fill(expected.begin(), expected.end(), std::byte{0});
        const size_t at = is_before ? 0 : newest - back;
        const bool is_zero = (is_before && spec.pad == StackPad::kZeros) || (at == length && episode.has_zero_tail);
        if (!is_zero) write_cell(expected.data(), n, lane.tag, place.episode, at, output.column);
        if (std::memcmp(expected.data(), got, n) == 0) continue;
        harness::fail(__FILE__, __LINE__,
                      output.name + " of lane " + std::to_string(lane.tag) + " episode " +
                          std::to_string(place.episode) + " step " + std::to_string(place.step) + " frame -" +
                          std::to_string(back) + " differs");
      }
    }
  }
}

inline std::string Rig::where(int64_t key) const {
  const Region& r = table->region();
  const uint64_t page = r.page_of(r.key_slot(key));
  const PageRecord& record = r.pages[page];
  const Range range = Range::unpack(record.range.load());
  const auto text = [](uint64_t number) { return " " + std::to_string(number); };
  return "; page" + text(page) + " offset" + text(r.offset_of(r.key_slot(key))) + " steps" + text(range.step_begin) +
         text(range.step_end) + " flags" + text(record.flags.load()) + " prev" + text(r.ref_page(record.prev.load())) +
         (r.alive(record.prev.load()) == kNoPage ? " gone" : " alive");
}

inline void Rig::verify(size_t most) {
  const Status checked = relive::check(*table);
  if (!checked.ok())
    harness::fail(__FILE__, __LINE__, "check(): " + (checked.fields().empty() ? "?" : checked.fields()[0].text));
  const size_t first = keys.size() > most ? keys.size() - most : 0;
  const std::vector<int64_t> asked(keys.begin() + static_cast<std::ptrdiff_t>(first), keys.end());
  for (uint32_t i = 0; i < spec_.indexes.size(); ++i) {
    const GatherPlan plan = make_plan(i);
    std::vector<std::vector<std::byte>> out(plan.outputs.size());
    std::vector<std::byte*> pointers;
    for (size_t o = 0; o < out.size(); ++o) {
      out[o].resize(plan.outputs[o].item_bytes * asked.size());
      pointers.push_back(out[o].data());
    }
    std::vector<uint8_t> present(asked.size());
    CHECK(relive::gather(*table, plan, asked.data(), asked.size(), pointers.data(), present.data()).ok());
    for (size_t k = 0; k < asked.size(); ++k) {
      const Place place = places.at(asked[k]);
      const ModelEpisode& episode = lanes[place.lane].episodes[place.episode];
      const bool alive = is_step_alive(asked[k]) && !episode.steps[place.step].is_removed;
      const bool complete = is_complete(spec_.indexes[i], place);
      if (present[k]) {
        CHECK(alive && complete);
        check_item(i, plan, out, k, asked[k]);
      } else if (alive && complete && spec_.indexes[i].initial != Initial::kGiven && !has_holes) {
        // The item may only be missing if rows that its stacks reach were evicted.
        const uint64_t row = episode.first_row + place.step;
        const uint64_t first_alive = first_row_alive(place.lane);
        if (first_alive == 0 || row >= first_alive + table->region().shape(i).before)
          harness::fail(__FILE__, __LINE__,
                        "a live item is missing: row " + std::to_string(row) + ", first live row " +
                            std::to_string(first_alive) + where(asked[k]));
      }
    }
  }
}

inline std::vector<int64_t> Rig::sample(uint32_t index, size_t num_items, const Where* where) {
  const GatherPlan plan = make_plan(index);
  std::vector<std::vector<std::byte>> out(plan.outputs.size());
  std::vector<std::byte*> pointers;
  for (size_t o = 0; o < out.size(); ++o) {
    out[o].resize(plan.outputs[o].item_bytes * num_items);
    pointers.push_back(out[o].data());
  }
  std::vector<int64_t> got(num_items);
  std::vector<double> probabilities(num_items);
  int64_t live = 0;
  DrawRequest request;
  request.index = index;
  request.num_items = num_items;
  request.where = where;
  request.plan = &plan;
  request.out = pointers.data();
  request.keys = got.data();
  request.probabilities = probabilities.data();
  request.num_live_items = &live;
  const Status status = relive::sample(*table, request, 0.0);
  if (!status.ok()) {
    CHECK(status.code() == Code::kDeadlineExceeded);
    return {};
  }
  for (size_t k = 0; k < num_items; ++k) {
    if (places.count(got[k]) == 0) {
      harness::fail(__FILE__, __LINE__, "sampled a key that was never given out");
      continue;
    }
    CHECK(probabilities[k] > 0.0 && probabilities[k] <= 1.0);
    const Place place = places.at(got[k]);
    CHECK(!lanes[place.lane].episodes[place.episode].steps[place.step].is_removed);
    CHECK(is_complete(spec_.indexes[index], place));
    check_item(index, plan, out, k, got[k]);
  }
  return got;
}

inline void Rig::complete(const std::vector<int64_t>& which) {
  std::vector<float> rewards;
  int64_t expected = 0, applied = 0;
  for (int64_t key : which) {
    const Place place = places.at(key);
    ModelStep& step = lanes[place.lane].episodes[place.episode].steps[place.step];
    rewards.push_back(reward_of(lanes[place.lane].tag, place.episode, place.step));
    if (!is_step_alive(key)) continue;
    expected += step.is_removed ? 0 : 1;
    step.is_filled = true;
  }
  const auto* cells = reinterpret_cast<const std::byte*>(rewards.data());
  const Status status =
      relive::complete_rows(*table, which.data(), which.size(), cells, sizeof(float) * which.size(), &applied);
  CHECK_EQ(static_cast<uint32_t>(status.code()), 0u);
  CHECK_EQ(applied, expected);
}

inline void Rig::remove(const std::vector<int64_t>& which) {
  int64_t deleted = 0;
  CHECK(relive::delete_items(*table, which.data(), which.size(), &deleted).ok());
  for (int64_t key : which) {
    const Place place = places.at(key);
    lanes[place.lane].episodes[place.episode].steps[place.step].is_removed = true;
  }
}

}  // namespace rig
