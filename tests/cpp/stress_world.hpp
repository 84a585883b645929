// The data of the stress programme: rows whose bytes are functions of (tag of the lane, episode, step), and the
// verification of a delivered window. A tag names one lane of one writer and is never reused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "relive/index/kinds.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/hooks.hpp"
#include "relive/table/inspect.hpp"
#include "relive/table/reading.hpp"
#include "relive/table/settings.hpp"
#include "relive/words/rng.hpp"

namespace stress {

using namespace relive;

inline constexpr double kGamma = 0.5;

struct Options {
  double seconds = 10.0;
  int random_kills = 0;    // this many; 0: none
  int self_kills = 0;      // runs until workers have killed themselves this often at random fail points
  int stops = 0;           // SIGSTOP ... SIGCONT
  int deaths_a_point = 0;  // with forced fail points: the deaths wanted at each
  double seconds_a_point = 4.0;
  std::string only_point;          // force this point only
  uint32_t n_step = 3, stack = 4;  // pages have 8 rows: 20 and 12 make windows over four and more pages
  uint32_t rounds = ~0u;           // without the lock, before all pages are pinned
  bool stateless = false;          // no state columns: no next outputs, no tails; an end is a mark in the last row
  uint32_t max_times = 0;
  double max_wait_s = 0.0;
  uint64_t max_staleness = 0;  // in versions, of which there are kVersions
  bool distinct = false;       // the first index and the second draw without replacement
  bool where = false;          // the first index has a condition, and some draws have one
  uint64_t max_items = 0;      // of the first index; the second has half of it
  std::string sampler;         // of the first index; empty: Prioritized
  std::string remover;         // of all indexes with max_items, explicit ones included; empty: Fifo
  double samples_per_insert = 0.0;
  bool uniform = false;
  bool with_deletes = true;
  bool with_moves = true;
  bool two_indexes = false;        // adds one over single steps without stacks
  bool second_priorities = false;  // it has its own priorities instead of being uniform
  std::string
      sequences;        // items with a time axis: pad, shift, drop, cross; of episodes: head, tail, random; empty: none
  bool ragged = false;  // episodes (head, tail or random) are read as ragged batches
  bool explicit_items = false;  // adds an index of items with up to three windows and one own column
  bool late = false;            // rewards and verdicts come later, from completers
  bool abandons = false;        // writers abandon episodes
  bool saves = false;           // a saver saves the table, and loads each save
  bool groups = false;          // adds an index of groups of episodes with the same prompt
  bool weigh = false;           // groups are drawn by the mean of their members' rewards
  bool short_lanes = false;     // writers close after a few calls
  bool threads_only = false;
  bool large_rows = false;
  bool quiet = false;
  uint64_t capacity = 1000;
  int writers = 3, samplers = 3, updaters = 2;
  int inserters = 2, item_samplers = 2;  // with explicit_items only
  int completers = 2;                    // with late only
  int group_samplers = 2;                // with groups only
  uint64_t seed = 1;
  std::string mutant;
  TierConfig tier;          // not tiered by default
  bool disk_fails = false;  // writes may meet a full disk, threads of a tier may lack memory
  std::string path;
};

inline constexpr int64_t kVerdictBytes = 64;  // the second late column
inline constexpr int64_t kCoreBytes = 328;    // the start value of sequences

inline uint64_t mix(uint64_t z) { return SplitMix64::mix(z); }

// Windows of explicit items, and the bytes of their own column.
inline constexpr uint32_t kItemWindows = 3;
inline constexpr uint32_t kItemRows[kItemWindows] = {20, 8, 6}, kItemStrides[kItemWindows] = {1, 1, 3};
inline constexpr uint32_t kOwnBytes = 300;

// The conditions of the first index and of draws.
inline constexpr int64_t kLeastStep = 1, kLeastDrawn = 3;

// The condition that a step is the episode's k-th or a later one.
inline std::vector<WrittenOperation> from_step(int64_t k) {
  return {{"whole", "", 0.0, k}, {"episode_step", "", 0.0, 0}, {"at_most_whole", "", 0.0, 0}};
}

inline uint32_t items_index(const Options& options) { return options.two_indexes ? 2 : 1; }

// Groups of episodes with the same one of a few prompts.
inline constexpr uint32_t kGroupRows = 96, kGroupSize = 3;
inline uint32_t groups_index(const Options& options) { return items_index(options) + (options.explicit_items ? 1 : 0); }
inline int64_t prompt_of(uint64_t tag, uint32_t episode) {
  return static_cast<int64_t>(mix(tag * 67 + episode) % 5) - 2;
}

// Windows over two and three pages of 8 rows.
inline SequenceConfig sequence_of(const Options& options) {
  SequenceConfig sequence{};
  if (options.sequences.empty()) return sequence;
  sequence = {12, 6, 2, 5, AtEnd::kPad, PadSide::kRight, 0, 0, 0};
  if (options.sequences == "shift") sequence.at_end = AtEnd::kShift, sequence.bootstrap = 0;
  if (options.sequences == "drop") sequence.at_end = AtEnd::kDrop;
  if (options.sequences == "cross") sequence.at_end = AtEnd::kCross;
  if (options.sequences == "head" || options.sequences == "tail" || options.sequences == "random") {
    sequence = {24, 0, 1, 0, AtEnd::kPad, PadSide::kRight, 1, 0, 0};
    sequence.only_the_last = options.sequences == "tail" ? 1 : 0;
    if (options.sequences == "tail") sequence.at_end = AtEnd::kShift;
    if (options.sequences == "random") sequence.only_the_last = kOneAtRandom, sequence.length = 6;
  }
  return sequence;
}

inline TableConfig make_config(const Options& options) {
  TableConfig config;
  const auto add = [&](const char* name, const char* dtype, std::vector<int64_t> shape, uint64_t item_bytes,
                       ColumnKind kind) {
    config.columns.push_back({name, dtype, std::move(shape), item_bytes, kind});
  };
  const ColumnKind kind = options.stateless ? ColumnKind::kStep : ColumnKind::kState;
  add("state", "|u1", {96}, 1, kind);
  add("picture", "|u1", {options.large_rows ? 65536 : 320}, 1, kind);
  add("step", "|u1", {96}, 1, ColumnKind::kStep);
  add("reward", "<f4", {}, 4, options.late ? ColumnKind::kLate : ColumnKind::kStep);
  if (options.late) add("verdict", "|u1", {kVerdictBytes}, 1, ColumnKind::kLate);
  if (!options.sequences.empty()) add("core", "|u1", {kCoreBytes}, 1, ColumnKind::kStart);
  IndexConfig index{};
  std::snprintf(index.name, sizeof index.name, "main");
  index.n_step = options.n_step;
  index.gamma = kGamma;
  index.sampling = options.uniform ? Sampling::kUniform : Sampling::kPrioritized;
  index.initial = Initial::kNumber;
  index.initial_number = 1.0;
  index.priority_exponent = 0.6;
  index.max_times_sampled = options.max_times;
  index.max_items = options.max_items;
  std::string known;
  if (!options.sampler.empty()) find_sampler(options.sampler, &index.sampling, &known);
  index.best_share = 0.25;  // of top_k
  index.latest = 200;
  index.decay = 0.5;  // for a version; versions differ so much that most other newcomers move the base
  Removal removal = Removal::kFifo;
  if (!options.remover.empty()) find_remover(options.remover, &removal, &known);
  if (options.max_items != 0) index.removal = removal;
  index.removal_exponent = 0.6;
  index.sequence = sequence_of(options);
  if (index.sequence.is_set()) index.n_step = 1;
  const int64_t rows_an_item = index.sequence.is_set() ? 200 : 20;
  const int64_t min_size = std::max<int64_t>(1, static_cast<int64_t>(options.capacity) / rows_an_item);
  index.limiter = options.samples_per_insert > 0.0
                      ? make_samples_per_insert(options.samples_per_insert, min_size, 2000.0)
                      : make_min_size(min_size);
  for (uint32_t& frames : index.stack) frames = 1;
  index.stack[0] = options.stateless ? 1 : options.stack;
  index.stack[1] = options.stateless ? 1 : 2;
  config.indexes.push_back(index);
  if (options.two_indexes) {
    std::snprintf(index.name, sizeof index.name, "plain");
    index.n_step = options.second_priorities ? options.n_step : 1;
    index.stack[0] = index.stack[1] = 1;  // the reach of the first index must cost this one nothing
    index.sampling = options.second_priorities ? Sampling::kPrioritized : Sampling::kUniform;
    index.max_times_sampled = 0;
    index.max_items = options.max_items / 2;
    index.limiter = make_min_size(1);
    config.indexes.push_back(index);
  }
  if (options.explicit_items) {
    index = IndexConfig{};
    std::snprintf(index.name, sizeof index.name, "items");
    index.n_step = 1;
    index.sampling = options.uniform ? Sampling::kUniform : Sampling::kPrioritized;
    index.initial = Initial::kNumber;
    index.initial_number = 1.0;
    index.priority_exponent = 0.6;
    index.max_times_sampled = options.max_times;
    index.limiter = make_min_size(1);
    index.map = LeafMap::kExplicit;
    index.removal = removal;
    index.removal_exponent = 0.6;
    index.max_items = 400;
    index.num_windows = kItemWindows;
    for (uint32_t w = 0; w < kItemWindows; ++w) {
      std::snprintf(index.windows[w].name, sizeof index.windows[w].name, "w%u", w);
      index.windows[w].length = kItemRows[w];
      index.windows[w].stride = kItemStrides[w];
    }
    config.item_columns.resize(config.indexes.size());
    config.item_columns.push_back({{"own", "|u1", {kOwnBytes}, 1, ColumnKind::kStep}});
    config.indexes.push_back(index);
  }
  if (options.groups) {
    add("prompt", "<i8", {}, 8, ColumnKind::kEpisode);
    index = IndexConfig{};
    std::snprintf(index.name, sizeof index.name, "groups");
    index.n_step = 1;
    index.gamma = 1.0;
    index.max_times_sampled = options.max_times;
    index.limiter = make_min_size(1);
    index.map = LeafMap::kExplicit;
    index.removal = removal;
    index.removal_exponent = 0.6;
    index.max_items = 12;
    index.num_windows = 1;
    index.windows[0].length = kGroupRows;
    index.windows[0].stride = 1;
    index.group.size = kGroupSize;
    index.group.column = static_cast<uint32_t>(config.columns.size()) - 1;
    if (options.weigh) {
      index.sampling = Sampling::kPrioritized;
      index.initial = Initial::kMax;
      index.priority_exponent = 1.0;
      index.group.weight = GroupWeight::kMean;
      index.group.weighed = 3;  // the reward: half of the groups have a mean <= 0 and are never drawn
    }
    config.indexes.push_back(index);
  }
  if (options.where) config.conditions = {from_step(kLeastStep)};
  for (IndexConfig& one : config.indexes) {
    one.max_wait_s = options.max_wait_s;
    one.versions_kept = options.max_staleness;
  }
  if (options.distinct)
    for (size_t i = 0; i < (options.two_indexes ? 2 : 1); ++i) config.indexes[i].traits |= kIsDistinct;
  config.capacity = options.groups ? std::max<uint64_t>(options.capacity, 14 * kGroupRows) : options.capacity;
  config.max_lanes = 12;
  config.max_participants = 24;
  config.seed = options.seed;
  config.tier = options.tier;
  return config;
}

// ---- rows

inline void write_cell(std::byte* to, size_t num_bytes, uint64_t tag, uint32_t episode, uint32_t step,
                       uint64_t column) {
  std::memcpy(to, &tag, 8);
  std::memcpy(to + 8, &episode, 4);
  std::memcpy(to + 12, &step, 4);
  uint64_t state = mix(mix(tag * 1000003 + episode) + step * 31 + column);
  for (size_t at = 16; at < num_bytes; at += 8) {
    state = state * 0xD1342543DE82EF95u + SplitMix64::kGolden;
    const uint64_t word = state ^ (state >> 32);
    std::memcpy(to + at, &word, std::min<size_t>(8, num_bytes - at));
  }
}

// A verdict: a function of its row and of the call that gave it (salt).
inline void write_verdict(std::byte* to, uint64_t tag, uint32_t episode, uint32_t step, uint64_t salt) {
  write_cell(to, kVerdictBytes, tag, episode, step, mix(salt));
  std::memcpy(to + 16, &salt, 8);
}
inline uint64_t salt_of(const std::byte* verdict) {
  uint64_t salt;
  std::memcpy(&salt, verdict + 16, 8);
  return salt;
}

// Most episodes fit one or two pages; one in eight covers up to twelve, for windows over many pages.
inline uint32_t length_of(uint64_t tag, uint32_t episode) {
  const uint32_t longest = mix(tag * 61 + episode) % 8 == 0 ? 96 : 24;
  return 1 + static_cast<uint32_t>(mix(tag * 31 + episode) % longest);
}
inline bool is_terminated(uint64_t tag, uint32_t episode) { return mix(tag * 37 + episode) % 2 == 0; }
// The way the episode is written: 0 append with next, 1 append without, 2 extend with T + 1 states, 3 extend and
// end_episode. Without state columns nothing is given beyond the rows, and only a truncation can come after them.
inline uint32_t mode_of(uint64_t tag, uint32_t episode, bool stateless) {
  const auto mode = static_cast<uint32_t>(mix(tag * 41 + episode) % 4);
  return stateless && mode == 3 && is_terminated(tag, episode) ? 2 : mode;
}
inline float reward_of(uint64_t tag, uint32_t episode, uint32_t step) {
  return static_cast<float>(static_cast<int64_t>(mix(tag * 43 + episode * 64 + step) % 65) - 32);
}
// Some episodes give a discount with each step; the table computes the others.
inline bool gives_discounts(uint64_t tag, uint32_t episode) { return mix(tag * 47 + episode) % 3 == 0; }
inline float discount_of(uint64_t tag, uint32_t episode, uint32_t step) {
  if (is_terminated(tag, episode) && step + 1 == length_of(tag, episode)) return 0.0f;
  if (!gives_discounts(tag, episode)) return 1.0f;
  return 1.0f / static_cast<float>(1u << mix(tag * 53 + episode * 64 + step) % 4);
}
inline constexpr uint64_t kVersions = 1'000'000'007;
inline int64_t version_of(uint64_t tag, uint32_t episode) {
  return static_cast<int64_t>(mix(tag * 59 + episode) % kVersions);
}
// The priority that updates give an item of an index of rows; explicit items get the one of the first index.
inline float priority_of(int64_t key, uint32_t index = 0) {
  return static_cast<float>(1 + mix(static_cast<uint64_t>(key) + (uint64_t{index} << 60)) % 1000) / 100.0f;
}

// ---- windows

struct Identity {
  uint64_t tag = 0;
  uint32_t episode = 0, step = 0;
  bool operator==(const Identity&) const = default;
};

inline bool is_verdict_of(const std::byte* verdict, const Identity& who) {
  std::byte expected[kVerdictBytes];
  write_verdict(expected, who.tag, who.episode, who.step, salt_of(verdict));
  return std::memcmp(expected, verdict, kVerdictBytes) == 0;
}

// Positions of a batch's outputs; the last two exist with state columns only.
enum Place : size_t {
  kState,
  kPicture,
  kStep,
  kReward,
  kDiscount,
  kTerminated,
  kTruncated,
  kNumSteps,
  kEpisodeStep,
  kPolicyVersion,
  kLane,
  kNextState,
  kNextPicture
};

class RaggedItems;  // stress_ragged.hpp

// Buffers of one batch with all columns.
class Batch final {
 public:
  Status prepare(Table* table, uint32_t index, size_t num_items, bool is_ragged) {
    std::vector<std::string> names = {"state",        "picture",        "step",      "reward",
                                      "discount",     "terminated",     "truncated", "num_steps",
                                      "episode_step", "policy_version", "lane"};
    stateless = table->region().geometry->has_state == 0;
    if (!stateless) names.insert(names.end(), {"next_state", "next_picture"});
    num_checked = names.size();
    is_late = table->region().late_bytes != 0;
    if (is_late) names.push_back("verdict");
    sequence = table->region().header->indexes[index].sequence;
    if (sequence.is_set()) names.insert(names.end(), {"core", "mask"});  // the last two outputs
    RELIVE_RETURN_IF_ERROR(relive::make_plan(*table, index, names, &plan));
    n_step = table->region().header->indexes[index].n_step;
    for (const Output& output : plan.outputs) {
      buffers.emplace_back(output.item_bytes * num_items);
      pointers.push_back(buffers.back().data());
    }
    keys.resize(num_items);
    probabilities.resize(num_items);
    present.resize(num_items);
    return is_ragged && sequence.only_ended != 0 ? prepare_ragged(table, index, names) : Status();
  }
  // Draws items, or gathers the items of these keys, as many as the batch has room for.
  Status sample(Table& table, DrawRequest request, double timeout_s);
  Status gather(Table& table, const std::vector<int64_t>& of);

  int64_t episode_step(size_t row) const { return value<int64_t>(kEpisodeStep, row); }
  int64_t lane(size_t row) const { return value<int64_t>(kLane, row); }
  // Identifies the call that completed the row; 0 without late columns.
  uint64_t salt(size_t row) const { return is_late ? salt_of(at(num_checked, row)) : 0; }
  // Whether it is a transition over fewer steps than its episode has for it, because its lane was cut.
  bool is_short(size_t row, const Identity& who) const {
    if (sequence.is_set()) return false;
    const auto num_steps = static_cast<uint32_t>(value<int64_t>(kNumSteps, row));
    return num_steps < std::min(n_step, length_of(who.tag, who.episode) - who.step);
  }
  // Returns "" if every byte of the window in this row is right. `torn`: whether bytes or logic are wrong.
  std::string verify(size_t row, Identity* who, bool* torn) const;

  GatherPlan plan;
  SequenceConfig sequence{};
  uint32_t n_step = 0;
  bool stateless = false, is_late = false;
  size_t num_checked = 0;  // outputs before the verdict
  std::vector<std::vector<std::byte>> buffers;
  std::vector<std::byte*> pointers;
  std::vector<int64_t> keys;
  std::vector<double> probabilities;
  std::vector<uint8_t> present;
  std::shared_ptr<RaggedItems> ragged;  // if its items are read as ragged batches
  std::string wrong_offsets;            // the fault of their offsets

 private:
  Status prepare_ragged(Table* table, uint32_t index, const std::vector<std::string>& names);
  const std::byte* at(size_t output, size_t row) const {
    return buffers[output].data() + row * plan.outputs[output].item_bytes;
  }
  template <class T>
  T value(size_t output, size_t row) const {
    T number;
    std::memcpy(&number, at(output, row), sizeof number);
    return number;
  }
  // step: row of a sequence; 0 for a transition.
  template <class T>
  T value(size_t output, size_t row, uint32_t step) const {
    T number;
    std::memcpy(&number, at(output, row) + step * sizeof number, sizeof number);
    return number;
  }
  std::string verify_sequence(size_t row, Identity* who, bool* torn) const;  // stress_sequences.hpp
  std::string verify_row(size_t row, uint32_t step, const Identity& who) const;
  std::string verify_across(size_t row, uint32_t front, const Identity& first) const;
  std::string verify_padding(size_t row, uint32_t t, bool is_front, const Identity& first) const;
  std::string verify_stack(size_t output, const std::byte* got, const Identity& who, uint32_t newest,
                           bool newest_may_be_zero) const;
  std::string verify_numbers(size_t row, const Identity& who, uint32_t num_steps) const;
};

inline std::string Batch::verify_stack(size_t output, const std::byte* got, const Identity& who, uint32_t newest,
                                       bool newest_may_be_zero) const {
  const Output& from = plan.outputs[output];
  const size_t num_bytes = (from.row_bytes != 0 ? from.row_bytes : from.item_bytes) / from.stack;
  thread_local std::vector<std::byte> expected;
  expected.resize(num_bytes);
  for (uint32_t back = from.stack; back-- > 0; got += num_bytes) {
    const uint32_t step = back > newest ? 0 : newest - back;
    write_cell(expected.data(), num_bytes, who.tag, who.episode, step, from.column);
    if (std::memcmp(expected.data(), got, num_bytes) == 0) continue;
    if (back == 0 && newest_may_be_zero &&
        std::all_of(got, got + num_bytes, [](std::byte b) { return b == std::byte{0}; }))
      continue;
    Identity found;
    std::memcpy(&found.tag, got, 8);
    std::memcpy(&found.episode, got + 8, 4);
    std::memcpy(&found.step, got + 12, 4);
    return from.name + " frame -" + std::to_string(back) + " is of " + std::to_string(found.tag) + "/" +
           std::to_string(found.episode) + "/" + std::to_string(found.step);
  }
  return {};
}

// Verifies its length, its ends and its return. Returns "" if all are right.
inline std::string Batch::verify_numbers(size_t row, const Identity& who, uint32_t num_steps) const {
  const uint32_t length = length_of(who.tag, who.episode);
  const uint32_t full = std::min(n_step, length - who.step);
  const bool terminates = is_terminated(who.tag, who.episode);
  const bool at_end = who.step + num_steps == length;
  const bool terminated = value<uint8_t>(kTerminated, row) != 0, truncated = value<uint8_t>(kTruncated, row) != 0;
  if (num_steps < 1 || num_steps > full)
    return "num_steps " + std::to_string(num_steps) + " of " + std::to_string(full);
  if (num_steps < full && !truncated) return "a short window that is not truncated";
  if (terminated != (at_end && terminates)) return "terminated";
  if (at_end && truncated && terminates) return "truncated, and terminated too";
  // Without state columns a full window does not wait for the next row: end_episode may mark its last row later.
  const bool may_come_later = stateless && num_steps == n_step && mode_of(who.tag, who.episode, true) == 3;
  if (at_end && !truncated && !terminates && !may_come_later) return "not truncated";
  if (value<int64_t>(kEpisodeStep, row) != who.step) return "episode_step";
  if (value<int64_t>(kPolicyVersion, row) != version_of(who.tag, who.episode)) return "policy_version";
  double sum = 0.0, product = 1.0;
  for (uint32_t k = 0; k < num_steps; ++k) {
    sum += product * reward_of(who.tag, who.episode, who.step + k);
    product *= kGamma * static_cast<double>(discount_of(who.tag, who.episode, who.step + k));
  }
  if (value<float>(kReward, row) != static_cast<float>(sum)) return "reward";
  if (value<float>(kDiscount, row) != static_cast<float>(product)) return "discount";
  return {};
}

inline std::string Batch::verify(size_t row, Identity* who, bool* torn) const {
  *torn = true;
  if (sequence.is_set()) return verify_sequence(row, who, torn);
  const std::byte* step_cell = at(kStep, row);
  std::memcpy(&who->tag, step_cell, 8);
  std::memcpy(&who->episode, step_cell + 8, 4);
  std::memcpy(&who->step, step_cell + 12, 4);
  std::byte expected[96];
  write_cell(expected, sizeof expected, who->tag, who->episode, who->step, plan.outputs[kStep].column);
  const auto name = [&](const std::string& what) {
    return what + " (window " + std::to_string(who->tag) + "/" + std::to_string(who->episode) + "/" +
           std::to_string(who->step) + ")";
  };
  if (std::memcmp(expected, step_cell, sizeof expected) != 0) return name("step cell");
  const uint32_t length = length_of(who->tag, who->episode);
  const auto num_steps = static_cast<uint32_t>(value<int64_t>(kNumSteps, row));
  if (who->step >= length) return name("a step beyond the end of its episode");
  for (size_t output : {kState, kPicture}) {
    const std::string wrong = verify_stack(output, at(output, row), *who, who->step, false);
    if (!wrong.empty()) return name(wrong);
  }
  const bool may_be_zero = who->step + num_steps == length && is_terminated(who->tag, who->episode);
  for (size_t output = kNextState; output < num_checked; ++output) {
    const std::string wrong = verify_stack(output, at(output, row), *who, who->step + num_steps, may_be_zero);
    if (!wrong.empty()) return name(wrong + " over " + std::to_string(num_steps) + " steps");
  }
  if (is_late && !is_verdict_of(at(num_checked, row), *who)) return name("verdict");
  *torn = false;
  const std::string wrong = verify_numbers(row, *who, num_steps);
  return wrong.empty() ? "" : name(wrong);
}

}  // namespace stress

#include "stress_ragged.hpp"
#include "stress_sequences.hpp"
