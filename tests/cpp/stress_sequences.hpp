// Verifies delivered sequences: the steps that may begin one, every byte of every row, and the padding.
#pragma once

#include "stress_world.hpp"

namespace stress {

// Whether bytes of padding are zero.
inline bool is_zero(const std::byte* bytes, size_t num_bytes) {
  return std::all_of(bytes, bytes + num_bytes, [](std::byte b) { return b == std::byte{0}; });
}

// Whether an index may have an item that begins at step x with m steps. `ends`: an end follows the last of them.
inline bool may_begin(const SequenceConfig& sequence, uint32_t x, uint32_t m, uint32_t length, bool ends) {
  const bool is_whole = m >= sequence.length, is_last = ends && m == sequence.length;
  const bool is_candidate = sequence.begins_at(x);
  if (sequence.only_ended != 0 && !is_whole && x + m != length) return false;  // its lane was cut: no item
  if (sequence.draws_one()) return is_whole || x == 0;
  if (sequence.only_the_last != 0) return x + m == length && (is_last || x == 0);
  if (sequence.at_end == AtEnd::kDrop) return is_candidate && is_whole;
  if (sequence.at_end == AtEnd::kPad) return is_candidate;
  return (is_candidate && is_whole) || is_last || (x == 0 && !is_whole);
}

// Verifies every byte of one step of a sequence, except its truncation.
inline std::string Batch::verify_row(size_t row, uint32_t t, const Identity& who) const {
  const uint32_t length = length_of(who.tag, who.episode);
  std::byte expected[96];
  write_cell(expected, sizeof expected, who.tag, who.episode, who.step, plan.outputs[kStep].column);
  if (std::memcmp(expected, at(kStep, row) + t * sizeof expected, sizeof expected) != 0) return "step cell";
  const bool ends = who.step + 1 == length, terminates = is_terminated(who.tag, who.episode);
  for (size_t output : {kState, kPicture, kNextState, kNextPicture}) {
    const bool is_next = output >= kNextState;
    if (is_next && stateless) continue;
    const std::byte* got = at(output, row) + t * plan.outputs[output].row_bytes;
    const std::string wrong =
        verify_stack(output, got, who, who.step + (is_next ? 1 : 0), is_next && ends && terminates);
    if (!wrong.empty()) return wrong;
  }
  if (value<float>(kReward, row, t) != reward_of(who.tag, who.episode, who.step)) return "reward";
  const double discount = kGamma * static_cast<double>(discount_of(who.tag, who.episode, who.step));
  if (value<float>(kDiscount, row, t) != static_cast<float>(discount)) return "discount";
  if ((value<uint8_t>(kTerminated, row, t) != 0) != (ends && terminates)) return "terminated";
  if (value<int64_t>(kEpisodeStep, row, t) != who.step) return "episode_step";
  return {};
}

// The number of steps that the lane had before this one. Its episodes are numbered from 0.
inline uint64_t lane_step_of(const Identity& who) {
  uint64_t number = who.step;
  for (uint32_t episode = 0; episode < who.episode; ++episode) number += length_of(who.tag, episode);
  return number;
}

// Verifies a window that crosses ends of episodes: every row is a step, and follows the row before it in the lane.
inline std::string Batch::verify_across(size_t row, uint32_t front, const Identity& first) const {
  const auto num = static_cast<uint32_t>(value<int64_t>(kNumSteps, row));
  const uint32_t lead = sequence.burn_in - front, most = sequence.length + sequence.bootstrap;
  const uint64_t number = lane_step_of(first) + lead;
  if (number % sequence.period != 0) return "an item where none begins";
  if (lead != std::min<uint64_t>(sequence.burn_in, number)) return "burn-in";
  if (num <= lead || num - lead > most) return "a length that cannot be";
  Identity who = first;
  int64_t lowest = INT64_MAX, highest = 0;
  for (uint32_t t = 0; t < sequence.num_rows(); ++t) {
    const bool is_step = t >= front && t < front + num;
    if ((value<uint8_t>(plan.outputs.size() - 1, row, t) != 0) != is_step) return "mask";
    if (!is_step) {
      const std::string wrong = verify_padding(row, t, t < front, first);
      if (!wrong.empty()) return wrong;
      continue;
    }
    const std::string wrong = verify_row(row, t, who);
    if (!wrong.empty()) return wrong + " of row " + std::to_string(t);
    if (is_late && !is_verdict_of(at(num_checked, row) + t * kVerdictBytes, who)) return "verdict";
    const bool ends = who.step + 1 == length_of(who.tag, who.episode);
    const bool is_last = t + 1 == front + num, truncated = value<uint8_t>(kTruncated, row, t) != 0;
    const bool is_cut = ends && !is_terminated(who.tag, who.episode);
    const bool may_come_later = stateless && is_last && num - lead == most && mode_of(who.tag, who.episode, true) == 3;
    if (is_cut && !truncated && !may_come_later) return "not truncated";
    if (truncated && !is_cut && (!is_last || ends)) return "truncated in the middle";
    if (is_last && num - lead < most && !ends && !truncated) return "a short window whose lane goes on";
    lowest = std::min(lowest, version_of(who.tag, who.episode));
    highest = std::max(highest, version_of(who.tag, who.episode));
    who = ends ? Identity{who.tag, who.episode + 1, 0} : Identity{who.tag, who.episode, who.step + 1};
  }
  if (value<int64_t>(kPolicyVersion, row, 0) != lowest || value<int64_t>(kPolicyVersion, row, 1) != highest)
    return "policy_version";
  return {};
}

// Verifies a row of padding: in front the first state, otherwise zeros.
inline std::string Batch::verify_padding(size_t row, uint32_t t, bool is_front, const Identity& first) const {
  for (size_t output = kState; output < plan.outputs.size(); ++output) {
    const Output& from = plan.outputs[output];
    const std::byte* got = at(output, row) + t * from.row_bytes;
    if (from.row_bytes == 0) continue;
    const bool is_first = is_front && !stateless && output <= kPicture;
    if (is_first ? !verify_stack(output, got, first, first.step, false).empty() : !is_zero(got, from.row_bytes))
      return "padding of " + from.name;
  }
  return {};
}

inline std::string Batch::verify_sequence(size_t row, Identity* who, bool* torn) const {
  const size_t mask = plan.outputs.size() - 1;
  const uint32_t num_rows = sequence.num_rows();
  const auto num = static_cast<uint32_t>(value<int64_t>(kNumSteps, row));
  uint32_t front = 0;
  while (front < num_rows && value<uint8_t>(mask, row, front) == 0) ++front;
  if (front > sequence.burn_in) return "no step where the loss begins";
  std::memcpy(&who->tag, at(kStep, row) + front * 96, 8);
  std::memcpy(&who->episode, at(kStep, row) + front * 96 + 8, 4);
  std::memcpy(&who->step, at(kStep, row) + front * 96 + 12, 4);
  const auto name = [&](const std::string& what) {
    return what + " (sequence " + std::to_string(who->tag) + "/" + std::to_string(who->episode) + "/" +
           std::to_string(who->step) + ", " + std::to_string(num) + " steps)";
  };
  const size_t core = mask - 1;
  std::byte start[kCoreBytes];
  write_cell(start, sizeof start, who->tag, who->episode, who->step, plan.outputs[core].column);
  if (std::memcmp(start, at(core, row), sizeof start) != 0) return name("start value");
  if (sequence.crosses()) {
    const std::string wrong = verify_across(row, front, *who);
    *torn = !wrong.empty();
    return wrong.empty() ? wrong : name(wrong);
  }
  const uint32_t lead = sequence.burn_in - front, x = who->step + lead, most = sequence.length + sequence.bootstrap;
  const uint32_t length = length_of(who->tag, who->episode);
  if (num <= lead || num - lead > most || x + (num - lead) > length) return name("a length that cannot be");
  const uint32_t m = num - lead;
  for (uint32_t t = 0; t < num_rows; ++t) {
    const bool is_step = t >= front && t < front + num;
    if ((value<uint8_t>(mask, row, t) != 0) != is_step) return name("mask");
    const bool is_tail = !stateless && t == front + num && m < most && sequence.bootstrap > 0;
    const Identity at_row{who->tag, who->episode, who->step + t - front};
    if (is_step) {
      const std::string wrong = verify_row(row, t, at_row);
      if (!wrong.empty()) return name(wrong + " of row " + std::to_string(t));
      if (is_late && !is_verdict_of(at(num_checked, row) + t * kVerdictBytes, at_row)) return name("verdict");
      continue;
    }
    for (size_t output = kState; output < plan.outputs.size(); ++output) {
      const Output& from = plan.outputs[output];
      const std::byte* got = at(output, row) + t * from.row_bytes;
      if (from.row_bytes == 0) continue;
      if (!stateless && output <= kPicture && t < front) {
        if (!verify_stack(output, got, *who, who->step, false).empty()) return name("padding in front");
      } else if (is_tail && output <= kPicture) {
        const bool may_be_zero = at_row.step == length && is_terminated(who->tag, who->episode);
        if (!verify_stack(output, got, at_row, at_row.step, may_be_zero).empty()) return name("tail");
      } else if (!is_zero(got, from.row_bytes)) {
        return name("padding of " + from.name);
      }
    }
  }
  *torn = false;
  const bool truncated = value<uint8_t>(kTruncated, row, front + num - 1) != 0, at_end = x + m == length;
  const bool terminates = is_terminated(who->tag, who->episode);
  const bool may_come_later = stateless && m == most && mode_of(who->tag, who->episode, true) == 3;
  if (lead != std::min(sequence.burn_in, x)) return name("burn-in");
  if (m < most && !at_end && !truncated) return name("a short window that is not truncated");
  if (at_end && !terminates && !truncated && !may_come_later) return name("not truncated");
  if (!may_begin(sequence, x, m, length, at_end || truncated)) return name("an item where none begins");
  for (uint32_t t = front; t + 1 < front + num; ++t)
    if (value<uint8_t>(kTruncated, row, t) != 0) return name("truncated in the middle");
  for (uint32_t k = 0; k < 2; ++k)
    if (value<int64_t>(kPolicyVersion, row, k) != version_of(who->tag, who->episode)) return name("policy_version");
  return {};
}

}  // namespace stress
