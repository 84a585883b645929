// The data of the core's tests: a table's specification, cells that are functions of their place, and the naive model
// of a table: lanes of episodes of steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "harness.hpp"
#include "relive/pages/publish.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/hooks.hpp"
#include "relive/table/inspect.hpp"
#include "relive/table/reading.hpp"
#include "relive/table/settings.hpp"
#include "relive/table/writer.hpp"
#include "relive/words/rng.hpp"

namespace rig {

using namespace relive;

struct IndexSpec {
  uint32_t n_step = 1;
  uint32_t stack = 1;  // of the column "pixels", or else "observation"
  bool prioritized = false;
  Sampling kind = Sampling::kUniform;  // if it is neither uniform nor prioritized
  Initial initial = Initial::kMax;
  uint32_t max_times = 0;
  StackPad pad = StackPad::kRepeat;
  LimiterConfig limiter = make_min_size(1);
  SequenceConfig sequence = {};  // Rig::verify() supports transitions only
  Removal removal = Removal::kFifo;
  uint64_t max_items = 0;  // 0: no bound
  uint64_t versions_kept = 0, latest = 0;
  double decay = 0.0;
};

struct Spec {
  uint64_t capacity = 20;
  uint32_t num_lanes = 1;
  uint32_t max_lanes = 4;
  bool has_state = true;
  bool has_pixels = false;
  bool has_late = false;  // the reward is a late column
  std::vector<IndexSpec> indexes = {IndexSpec{}};
  std::vector<std::vector<WrittenOperation>> conditions = {};  // of those; Rig::verify() supports none
  std::vector<IndexConfig> explicit_indexes = {};              // after those
  std::vector<ColumnConfig> item_columns = {};                 // of each explicit index
  uint64_t seed = 0;
  // This many of a hundred operations are followed by a close and an open, or by a recovery.
  uint32_t reopens = 0;
  TierConfig tier = {};
};

inline constexpr double kGamma = 0.9;

inline ColumnConfig column(const char* name, const char* dtype, std::vector<int64_t> shape, uint64_t item_bytes,
                           ColumnKind kind) {
  return {name, dtype, std::move(shape), item_bytes, kind};
}

inline TableConfig make_config(const Spec& spec) {
  TableConfig config;
  if (spec.has_state) config.columns.push_back(column("observation", "<f4", {11}, 4, ColumnKind::kState));
  if (spec.has_pixels) config.columns.push_back(column("pixels", "|u1", {84, 84}, 1, ColumnKind::kState));
  config.columns.push_back(column("action", "<f4", {3}, 4, ColumnKind::kStep));
  config.columns.push_back(column("reward", "<f4", {}, 4, spec.has_late ? ColumnKind::kLate : ColumnKind::kStep));
  for (size_t i = 0; i < spec.indexes.size(); ++i) {
    const IndexSpec& from = spec.indexes[i];
    IndexConfig to{};
    std::snprintf(to.name, sizeof to.name, "index%zu", i);
    to.n_step = from.n_step;
    to.gamma = kGamma;
    to.stack_pad = from.pad;
    to.sampling = from.prioritized ? Sampling::kPrioritized : from.kind;
    to.initial = from.initial;
    to.initial_number = 1.0;
    to.priority_exponent = 0.6;
    to.limiter = from.limiter;
    to.max_times_sampled = from.max_times;
    to.sequence = from.sequence;
    to.removal = from.removal;
    to.removal_exponent = 1.0;
    to.max_items = from.max_items;
    to.versions_kept = from.versions_kept;
    to.latest = from.latest;
    to.decay = from.decay;
    for (uint32_t& frames : to.stack) frames = 1;
    if (spec.has_state) to.stack[spec.has_pixels ? 1 : 0] = from.stack;
    config.indexes.push_back(to);
  }
  config.item_columns.resize(spec.indexes.size());
  for (const IndexConfig& index : spec.explicit_indexes) {
    config.indexes.push_back(index);
    config.item_columns.push_back(spec.item_columns);
  }
  config.conditions = spec.conditions;
  config.capacity = spec.capacity;
  config.max_lanes = spec.max_lanes;
  config.max_participants = 4;
  config.seed = spec.seed;
  config.tier = spec.tier;
  return config;
}

inline uint64_t mix(uint64_t z) { return SplitMix64::mix(z); }

// Writes the bytes of one cell.
inline void write_cell(std::byte* to, size_t num_bytes, uint64_t lane, uint64_t episode, uint64_t step,
                       uint64_t column) {
  uint64_t state = mix(mix(mix(lane * 1000003 + episode) + step) + column);
  for (size_t at = 0; at < num_bytes; at += 8) {
    state = mix(state + SplitMix64::kGolden);
    std::memcpy(to + at, &state, std::min<size_t>(8, num_bytes - at));
  }
}

inline float reward_of(uint64_t lane, uint64_t episode, uint64_t step) {
  return static_cast<float>(static_cast<int64_t>(mix(mix(lane * 7919 + episode) + step) % 33) - 16) * 0.25f;
}

struct ModelStep {
  int64_t key = 0;
  bool terminated = false, truncated = false;
  float discount = 1.0f;
  bool is_removed = false;
  bool is_filled = true;  // has its late columns
};

struct ModelEpisode {
  std::vector<ModelStep> steps;
  bool ended = false;
  bool has_zero_tail = false;
  uint64_t first_row = 0;
};

struct ModelLane {
  uint64_t tag = 0;
  std::vector<ModelEpisode> episodes = {ModelEpisode{}};
  bool has_seam = false;
  uint64_t rows = 0;      // tails included, and the rows of the lanes before it in its page
  size_t before = kNone;  // the lane in whose page it continues

  static constexpr size_t kNone = ~size_t{0};
};

struct Place {
  size_t lane, episode, step;
};

enum class NextGiven { kNo, kYes, kLastRow };

}  // namespace rig
