#include "relive/table/draw_pinned.hpp"

#include <algorithm>

#include "relive/pages/pin_all.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kMostRounds = 64;
constexpr size_t kChunk = 256;  // items chosen in one critical section (rule C3)

// The filling of one batch.
class PinnedFill final {
 public:
  PinnedFill(DrawRounds& rounds, uint32_t attempt)
      : rounds_(rounds),
        call_(rounds.call()),
        s_(rounds.scratch()),
        choice_(call_.request),
        attempt_(attempt),
        is_noted_(call_.request.plan != nullptr && is_noted_when_chosen(*call_.request.plan)) {
    choice_.plan = nullptr;
  }
  Status run(bool* too_few);

 private:
  const uint32_t* rows(size_t begin) const { return s_.chosen.data() + begin; }
  size_t chunk() const;
  bool choose(Locked& locked);
  Status find(size_t begin, size_t end, bool* too_few);
  Status note_found(size_t begin, size_t end);
  Status read(bool* too_few);

  DrawRounds& rounds_;
  const DrawCall& call_;
  DrawScratch& s_;
  DrawRequest choice_;  // the request without its rows
  uint32_t attempt_;
  const bool is_noted_;  // the places of rows are noted under the lock: a record may be rewritten after it
};

// A batch that is in order is of one moment, and so chosen in one critical section (rule R4).
size_t PinnedFill::chunk() const {
  if (call_.is_by_order()) return s_.chosen.size();
  return is_noted_ ? std::min(kChunk, noted_per_section(call_.r, call_.request.index)) : kChunk;
}

Status PinnedFill::run(bool* too_few) {
  const DrawRequest& request = call_.request;
  call_.r.header->counters.slow_draws.fetch_add(1, kRelaxed);
  PinAll pins(call_.table.door(), call_.deadline);
  s_.chosen.assign(rounds_.missing().rows().begin(), rounds_.missing().rows().end());
  s_.runs.clear();
  if (is_noted_) s_.runs.reserve(s_.chosen.size() * call_.r.geometry->records[request.index].nodes_a_record());
  const size_t chunk = this->chunk();
  for (size_t begin = 0; begin < s_.chosen.size(); begin += chunk) {
    const size_t end = std::min(s_.chosen.size(), begin + chunk);
    rounds_.missing().ask_for(rows(begin), end - begin);
    Locked locked(call_.table.door(), call_.deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (request.plan != nullptr) pins.begin(locked);
    if (call_.is_sifted() || call_.is_shuffled()) {
      locked.release();
      RELIVE_RETURN_IF_ERROR(find(begin, end, too_few));
    } else {
      *too_few = !choose(locked);
      if (!*too_few && is_noted_) note_chosen(call_.r, request, &s_, begin, end);
    }
    if (*too_few) return {};
  }
  return request.plan != nullptr ? read(too_few) : Status();
}

// Items for the missing rows, chosen and claimed under the lock. False: there are too few.
bool PinnedFill::choose(Locked& locked) {
  MissingRows& missing = rounds_.missing();
  for (uint32_t round = 0; !missing.empty(); ++round) {
    if (round > kMostRounds || !rounds_.draw(choice_, attempt_++)) return false;
    if (call_.takes_claims()) rounds_.claim_locked(locked.held());
    Leaves::flush_all(locked.held());  // the next round descends by these sums
    missing.end_round();
  }
  return true;
}

// A draw that looks for its items reads rows, so it finds chosen[begin .. end) without the lock while pages are pinned;
// under the lock they are claimed and noted (rule G10).
Status PinnedFill::find(size_t begin, size_t end, bool* too_few) {
  MissingRows& missing = rounds_.missing();
  for (uint32_t lost = 0; !missing.empty();) {
    RELIVE_RETURN_IF_ERROR(rounds_.outwait_change());
    if (lost > kMostRounds || !rounds_.draw(choice_, attempt_++)) {
      *too_few = true;
      return {};
    }
    RELIVE_RETURN_IF_ERROR(rounds_.look_on());
    if (s_.looks.num_unfilled == 0) ++lost;
    s_.claimed.reserve(s_.claimed.size() + missing.size());  // before the lock is taken (rule C4)
    RELIVE_RETURN_IF_ERROR(rounds_.claim());
    missing.end_round();
    // In a batch that is in order, an item that comes later stands later: the order is read again.
    if (!missing.empty() && call_.is_by_order() && !call_.takes_claims()) rounds_.ask_for_all();
    if (missing.empty() && is_noted_) RELIVE_RETURN_IF_ERROR(note_found(begin, end));
  }
  return {};
}

// Notes the places of chosen[begin .. end) if all of these items are still there. Rows whose items went are missing
// again.
Status PinnedFill::note_found(size_t begin, size_t end) {
  MissingRows& missing = rounds_.missing();
  missing.ask_for(rows(begin), end - begin);
  Locked locked(call_.table.door(), call_.deadline);
  RELIVE_RETURN_IF_ERROR(locked.status());
  const ItemMap& map = call_.r.map(call_.request.index);
  missing.keep_if([&map](const Window& w) { return map.is_same(w.slot, w.word); });
  if (missing.num_lost() == 0) note_chosen(call_.r, call_.request, &s_, begin, end);
  missing.end_round();
  return {};
}

// The rows of the chosen items, while every page is pinned.
Status PinnedFill::read(bool* too_few) {
  if (call_.request.ragged == nullptr) {
    *too_few = !read_chosen(call_.r, call_.request, &s_);
    return {};
  }
  RaggedBatch& ragged = *call_.request.ragged;
  for (const uint32_t row : s_.chosen) ragged.forget(row);
  *too_few = !read_chosen(call_.r, rounds_.first_request(), &s_);
  if (*too_few) return {};
  RELIVE_RETURN_IF_ERROR(ragged.lay_out());
  ragged.place(s_.windows.data(), s_.chosen.data(), s_.chosen.size());
  DrawRequest request = call_.request;
  request.out = ragged.out();
  *too_few = !read_chosen(call_.r, request, &s_);
  for (const uint32_t row : s_.chosen) ragged.note(row);
  return {};
}

}  // namespace

Status fill_pinned(DrawRounds& rounds, uint32_t attempt, bool* too_few) {
  return PinnedFill(rounds, attempt).run(too_few);
}

}  // namespace relive
