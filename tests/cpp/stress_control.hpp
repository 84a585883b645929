// The memory that driver and workers of the stress programme share: counters, orders to die, and reports of faults.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "relive/words/rng.hpp"
#include "relive/words/testing.hpp"
#include "stress_notes.hpp"

namespace stress {

inline constexpr uint32_t kMaxWorkers = 24;
inline constexpr uint32_t kNumPoints = static_cast<uint32_t>(relive::testing::FailPoint::kCount);
inline constexpr uint32_t kUseSlots = 1u << 14;
inline constexpr uint32_t kLaneSlots = 1u << 14;
inline constexpr uint32_t kRowNotes = 1u << 11, kItemNotes = 1u << 10, kRecentRows = 64;

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Whether this thread works on a table of its own, whose fail points do not count.
inline thread_local bool is_apart = false;

struct WorkerSlot {
  std::atomic<uint64_t> progress;  // calls finished: a worker that makes none hangs
  std::atomic<uint64_t> stops;     // raised by the driver before a stop and after a resume
};

struct Control {
  std::atomic<uint32_t> is_over;
  std::atomic<uint64_t> next_tag;
  std::atomic<uint64_t> windows, batches, steps, updates_applied, updates_stale, deleted, checks, moved, gathered_again;
  std::atomic<uint64_t> torn, violations, hangs, crashes, overruns, timeouts;
  std::atomic<uint64_t> deaths_in_lock, longest_call_us;
  std::atomic<uint64_t> deaths[kNumPoints];
  std::atomic<uint32_t> forced_point;   // kNumPoints: none
  std::atomic<uint32_t> random_points;  // each worker chooses a point
  std::atomic<uint32_t> num_messages;
  char messages[24][240];
  WorkerSlot workers[kMaxWorkers];
  // The number of deliveries of an item: low 48 bits of its key | count. Items with the same place only lower the
  // counts.
  std::atomic<uint64_t> uses[kUseSlots];
  // The tag of a lane's rows, and the lane of a tag's rows, as first delivered: low halves of uid << 32 | tag.
  std::atomic<uint64_t> tags[kLaneSlots], lanes[kLaneSlots];
  // For explicit items and late columns: the content of rows and items, and the notes of the rows that were written
  // last.
  std::atomic<uint64_t> items_inserted, items_known;
  Noted<RowNote> rows[kRowNotes];
  Noted<ItemNote> items[kItemNotes];
  std::atomic<uint64_t> recent_rows[kRecentRows];
  std::atomic<uint64_t> rows_completed;
  std::atomic<int64_t> completed[kRowNotes];  // keys of rows with their late columns, by place of their note
  std::atomic<uint64_t> next_recent;
  // For lanes whose last episode was abandoned, by tag: tag << 32 | episode, and the time in microseconds.
  std::atomic<uint64_t> given_up[kLaneSlots], given_up_us[kLaneSlots];
  std::atomic<uint64_t> num_given_up;
  // Saves that were loaded, and images in them that an earlier save wrote.
  std::atomic<uint64_t> saves_loaded, images_kept;
  Noted<EndNote> ends[kLaneSlots];
  // Items that were about to be dropped for their time, and items that were dropped. The table's count lies in between.
  std::atomic<uint64_t> drops_begun, drops_done;

  void note_given_up(uint64_t tag, uint32_t episode, double now) {
    given_up_us[tag % kLaneSlots].store(static_cast<uint64_t>(now * 1e6));
    given_up[tag % kLaneSlots].store(tag << 32 | episode);
    num_given_up.fetch_add(1);
  }
  bool was_given_up(uint64_t tag, uint32_t episode, double before) const {
    return given_up[tag % kLaneSlots].load() == (tag << 32 | episode) &&
           static_cast<double>(given_up_us[tag % kLaneSlots].load()) < before * 1e6;
  }

  // Call this before the call that ends the episode.
  void note_end(uint64_t tag, uint32_t episode, double now) {
    ends[place_of_end(tag, episode)].store({tag, episode, static_cast<uint64_t>(now * 1e6)});
  }
  // Whether the end of an episode began after this moment, as far as the notes reach.
  bool ended_after(uint64_t tag, uint32_t episode, double moment) const {
    EndNote note;
    return ends[place_of_end(tag, episode)].load(&note) && note.tag == tag && note.episode == episode &&
           static_cast<double>(note.begun_us) > moment * 1e6;
  }
  static uint64_t place_of_end(uint64_t tag, uint32_t episode) { return (tag * 61 + episode) % kLaneSlots; }

  void note_row(uint64_t slot, const RowNote& note) {
    rows[slot % kRowNotes].store(note);
    recent_rows[next_recent.fetch_add(1) % kRecentRows].store(slot % kRowNotes);
  }
  bool find_row(uint64_t place, RowNote* note) const { return rows[place].load(note); }
  void note_item(uint64_t record, const ItemNote& note) { items[record % kItemNotes].store(note); }
  bool find_item(uint64_t record, ItemNote* note) const { return items[record % kItemNotes].load(note); }
  // Call this for a new region, which gives the same keys and uids again.
  void forget() {
    for (auto& use : uses) use.store(0);
    for (auto& tag : tags) tag.store(0);
    for (auto& lane : lanes) lane.store(0);
    for (auto& row : rows) row.clear();
    for (auto& item : items) item.clear();
    for (auto& key : completed) key.store(0);
    for (auto& tag : given_up) tag.store(0);
    for (auto& end : ends) end.clear();
    drops_begun.store(0);
    drops_done.store(0);
  }
  // Whether this lane's rows have this tag and no other, as far as the notes reach.
  bool is_lane_of(uint64_t tag, int64_t lane) {
    const uint64_t pair = static_cast<uint64_t>(lane) << 32 | (tag & 0xffffffff);
    const uint64_t by_lane = tags[static_cast<uint64_t>(lane) % kLaneSlots].exchange(pair);
    const uint64_t by_tag = lanes[tag % kLaneSlots].exchange(pair);
    return (by_lane == pair || by_lane >> 32 != pair >> 32) &&
           (by_tag == pair || (by_tag & 0xffffffff) != (pair & 0xffffffff));
  }
  void count_use(uint64_t leaf, int64_t key, uint32_t most) {
    std::atomic<uint64_t>& use = uses[leaf % kUseSlots];
    const uint64_t name = static_cast<uint64_t>(key) << 16;
    uint64_t seen = use.load();
    while (!use.compare_exchange_weak(seen, (seen >> 16 == name >> 16 ? seen : name) + 1)) {
    }
    if (seen >> 16 == name >> 16 && (seen & 0xffff) >= most) found_violation("an item handed out too often");
  }

  void say(const char* kind, const char* format, ...) __attribute__((format(printf, 3, 4))) {
    const uint32_t position = num_messages.fetch_add(1);
    if (position >= 24) return;
    const int used = std::snprintf(messages[position], sizeof messages[position], "%s: ", kind);
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(messages[position] + used, sizeof messages[position] - static_cast<size_t>(used), format, arguments);
    va_end(arguments);
  }
  void found_torn(const char* text) { say("torn", "%s", text), torn.fetch_add(1); }  // reported before it is counted
  void found_violation(const char* text) { say("violation", "%s", text), violations.fetch_add(1); }
  uint64_t num_bad() const { return torn + violations + hangs + crashes + overruns; }
};

inline Control* make_control() {
  void* memory = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto* control = new (memory) Control();  // the mapping is zero already
  control->forced_point.store(kNumPoints);
  control->next_tag.store(1);
  return control;
}

struct Random {
  uint64_t state;
  uint64_t next() { return relive::SplitMix64::next(&state); }
  uint64_t below(uint64_t n) { return next() % n; }
};

}  // namespace stress
