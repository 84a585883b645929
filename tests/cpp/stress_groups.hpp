// Groups of episodes in the stress programme: samplers that verify each row of each member.
#pragma once

#include <algorithm>
#include <tuple>

#include "stress_workers.hpp"

namespace stress {

class GroupSamplerWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  static constexpr size_t kBatch = 16;
  enum Place : size_t { kStep, kPrompt, kMask, kReward, kEpisodeStep, kNumSteps, kPlaces };

  void begin() override {
    index_ = groups_index(options_);
    plan_ = GatherPlan{};
    expect(
        relive::make_plan(table(), index_, {"step", "prompt", "mask", "reward", "episode_step", "num_steps"}, &plan_),
        "planning groups");
    buffers_.clear();
    pointers_.clear();
    for (const Output& output : plan_.outputs) buffers_.emplace_back(output.item_bytes * kBatch);
    for (auto& buffer : buffers_) pointers_.push_back(buffer.data());
  }

  void step() override {
    int64_t live = 0, keys[kBatch];
    double probabilities[kBatch];
    DrawRequest request;
    request.index = index_;
    request.num_items = kBatch;
    request.plan = &plan_;
    request.out = pointers_.data();
    request.keys = keys;
    request.probabilities = probabilities;
    request.num_live_items = &live;
    const double begin_s = now_s();
    const Status status = timed(kTimeout_s, "sample", [&] { return relive::sample(table(), request, kTimeout_s); });
    if (!expect(status, "sampling groups")) return;
    for (size_t item = 0; item < kBatch; ++item) verify(item, begin_s);
    control_.windows.fetch_add(kBatch);
    control_.items_known.fetch_add(kBatch);
  }

  template <class T>
  T value(Place place, size_t item, size_t member, size_t row) const {
    const size_t num_bytes = plan_.outputs[place].item_bytes / kGroupSize;
    T number;
    std::memcpy(&number, pointers_[place] + (item * kGroupSize + member) * num_bytes + row * sizeof(T), sizeof(T));
    return number;
  }

  void verify(size_t item, double begin_s) {
    std::vector<std::pair<uint64_t, uint32_t>> members;
    double rewards = 0.0;
    const auto prompt = value<int64_t>(kPrompt, item, 0, 0);
    for (size_t g = 0; g < kGroupSize; ++g) {
      const auto num = static_cast<uint32_t>(value<int64_t>(kNumSteps, item, g, 0));
      const std::byte* const cells = pointers_[kStep] + (item * kGroupSize + g) * kGroupRows * 96;
      uint64_t tag;
      uint32_t episode;
      std::memcpy(&tag, cells, 8);
      std::memcpy(&episode, cells + 8, 4);
      members.emplace_back(tag, episode);
      if (num != length_of(tag, episode)) return control_.found_violation("a member of a group that is not whole");
      if (value<int64_t>(kPrompt, item, g, 0) != prompt || prompt != prompt_of(tag, episode))
        return control_.found_violation("a member of a group has another value");
      if (control_.was_given_up(tag, episode, begin_s))
        return control_.found_violation("a member of a group was given up before");
      for (uint32_t row = 0; row < kGroupRows; ++row) {
        const bool is_step = row < num;
        std::byte expected[96] = {};
        if (is_step) write_cell(expected, sizeof expected, tag, episode, row, 2);
        const bool is_sound = (value<uint8_t>(kMask, item, g, row) != 0) == is_step &&
                              std::memcmp(cells + row * 96, expected, sizeof expected) == 0 &&
                              value<int64_t>(kEpisodeStep, item, g, row) == (is_step ? row : 0) &&
                              value<float>(kReward, item, g, row) == (is_step ? reward_of(tag, episode, row) : 0.0f);
        if (!is_sound) return control_.found_torn("a row of a group");
        rewards += value<float>(kReward, item, g, row);
      }
    }
    std::sort(members.begin(), members.end());
    if (std::adjacent_find(members.begin(), members.end()) != members.end())
      control_.found_violation("an episode is in a group twice");
    if (options_.weigh && rewards <= 0.0) control_.found_violation("a group without a weight was drawn");
  }

  uint32_t index_ = 0;
  GatherPlan plan_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<std::byte*> pointers_;
};

}  // namespace stress
