// Explicit items in the stress programme: workers that insert, update and delete items, and workers that draw and
// verify them. A writer notes the step of each of its rows in the control, and an inserter notes the rows of each of
// its items. A sampler can therefore verify lane, step and order of every row of an item. An item without a note (its
// inserter was killed, or has not noted it yet) is still verified in every byte.
#pragma once

#include "stress_workers.hpp"

namespace stress {

// Moves to the next step of the lane. Returns false if a tail lies in between.
inline bool advance(Identity* who, bool stateless) {
  if (++who->step < length_of(who->tag, who->episode)) return true;
  ++who->episode, who->step = 0;
  return stateless;
}

class InserterWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  static constexpr size_t kMost = 4;
  static constexpr size_t kCrowd = 300;  // items on one row: more than one critical section may end

  void step() override {
    const uint32_t index = items_index(options_);
    const uint64_t dice = random_.below(20);
    if (dice < 13 || late_.empty()) return insert(index);
    std::vector<int64_t> keys;
    std::vector<float> priorities;
    for (size_t k = 0; k < 16; ++k) {
      keys.push_back(late_[late_.size() - 1 - random_.below(late_.size())]);
      priorities.push_back(priority_of(keys.back()));
    }
    int64_t applied = 0;
    if (dice == 13 && options_.with_deletes) {
      expect(timed(10.0, "delete", [&] { return relive::delete_items(table(), keys.data(), 2, &applied); }),
             "deleting items");
      control_.deleted.fetch_add(static_cast<uint64_t>(applied));
    } else {
      expect(timed(10.0, "update",
                   [&] {
                     return relive::update_priorities(table(), index, keys.data(), priorities.data(), keys.size(),
                                                      &applied);
                   }),
             "updating items");
      control_.updates_applied.fetch_add(static_cast<uint64_t>(applied));
      control_.updates_stale.fetch_add(keys.size() - static_cast<size_t>(applied));
    }
  }

  // A written row: one of the last few, or any that was ever noted. The row may be evicted, or be the next to go.
  bool choose(RowNote* row) {
    const uint64_t recent = control_.recent_rows[random_.below(kRecentRows)].load();
    return control_.find_row(random_.below(3) == 0 ? recent : random_.below(kRowNotes), row);
  }

  void insert(uint32_t index) {
    std::vector<WindowRows> windows;
    std::vector<ItemNote> notes;
    std::vector<std::byte> own;
    for (uint64_t left = 1 + random_.below(kMost); left > 0; --left) {
      ItemNote note{};
      WindowRows rows[kItemWindows] = {};
      const uint64_t wanted = 1 + random_.below((1u << kItemWindows) - 1);  // one bit for each window
      for (uint32_t w = 0; w < kItemWindows; ++w) {
        RowNote row;
        if ((wanted >> w & 1) == 0 || !choose(&row)) continue;
        uint32_t num_rows = 1 + static_cast<uint32_t>(random_.below(kItemRows[w]));
        const uint32_t to_end = (length_of(row.tag, row.episode) - row.step - 1) / kItemStrides[w] + 1;
        if (!options_.stateless) num_rows = std::min(num_rows, to_end);
        note.windows[w] = {row.tag, row.episode, row.step, num_rows};
        rows[w] = {row.key, num_rows};
        if (note.has_window != 0) continue;
        note.has_window = 1;  // the item's own column is a function of its first row
        own.resize(own.size() + kOwnBytes);
        write_cell(own.data() + own.size() - kOwnBytes, kOwnBytes, row.tag, row.episode, row.step, kOwnBytes);
      }
      if (note.has_window == 0) continue;
      windows.insert(windows.end(), rows, rows + kItemWindows);
      notes.push_back(note);
    }
    if (notes.empty()) return;
    if (random_.below(150) == 0) {
      notes.assign(kCrowd, notes.front());
      windows.resize(kItemWindows);
      own.resize(kOwnBytes);
      for (size_t k = 1; k < kCrowd; ++k) {
        for (uint32_t w = 0; w < kItemWindows; ++w) windows.push_back(windows[w]);
        for (size_t byte = 0; byte < kOwnBytes; ++byte) own.push_back(own[byte]);
      }
    }
    const std::byte* const columns[] = {own.data()};
    const std::vector<float> ones(notes.size(), 1.0f);
    const bool gives = !options_.uniform && random_.below(2) == 0;
    std::vector<int64_t> keys(notes.size());
    size_t stored = 0;
    const NewItems items{notes.size(), windows.data(), gives ? ones.data() : nullptr, columns};
    const Status status = timed(kTimeout_s, "insert", [&] {
      return relive::insert_items(table(), index, items, kTimeout_s, keys.data(), &stored);
    });
    if (status.code() != Code::kRowGone && status.code() != Code::kRowsApart) expect(status, "inserting items");
    for (size_t k = 0; k < stored; ++k) {
      notes[k].key = keys[k];
      control_.note_item(table().region().leaf_of_key(index, keys[k]), notes[k]);
      late_.push_back(keys[k]);
    }
    if (late_.size() > 600) late_.erase(late_.begin(), late_.begin() + 300);
    control_.items_inserted.fetch_add(stored);
  }

  std::vector<int64_t> late_;
};

class ItemSamplerWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  static constexpr size_t kBatch = 16;
  enum Place : size_t { kState, kPicture, kStep, kReward, kEpisodeStep, kFirst, kPolicyVersion, kNumSteps, kPlaces };
  static constexpr size_t kOwn = kItemWindows * kPlaces;  // the item's own column, after those of the windows

  void begin() override {
    index_ = items_index(options_);
    plan_ = GatherPlan{};
    std::vector<std::string> names;
    for (uint32_t w = 0; w < kItemWindows; ++w)
      for (const char* name :
           {"state", "picture", "step", "reward", "episode_step", "first", "policy_version", "num_steps"})
        names.push_back("w" + std::to_string(w) + "/" + name);
    names.push_back("own");
    expect(relive::make_plan(table(), index_, names, &plan_), "planning items");
    buffers_.clear();
    pointers_.clear();
    for (const Output& output : plan_.outputs) buffers_.emplace_back(output.item_bytes * kBatch);
    for (auto& buffer : buffers_) pointers_.push_back(buffer.data());
  }

  void step() override {
    int64_t live = 0;
    double probabilities[kBatch];
    DrawRequest request;
    request.index = index_;
    request.num_items = kBatch;
    request.plan = &plan_;
    request.out = pointers_.data();
    request.keys = keys_;
    request.probabilities = probabilities;
    request.num_live_items = &live;
    const Status status = timed(kTimeout_s, "sample", [&] { return relive::sample(table(), request, kTimeout_s); });
    if (!expect(status, "sampling items")) return;
    for (size_t place = 0; place < kBatch; ++place) {
      verify(place, &rows_[place]);
      if (options_.max_times != 0)
        control_.count_use(table().region().key_slot(keys_[place]), keys_[place], options_.max_times);
      if (!(probabilities[place] > 0.0) || probabilities[place] > 1.0 + 1e-9)
        control_.found_violation("a probability outside (0, 1]");
    }
    control_.windows.fetch_add(kBatch);
    if (random_.below(3) == 0) gather_again();
  }

  // A gather by key must return the same items, or none.
  void gather_again() {
    uint8_t present[kBatch];
    const std::vector<std::vector<Identity>> before(rows_, rows_ + kBatch);
    const Status status = timed(
        kTimeout_s, "gather", [&] { return relive::gather(table(), plan_, keys_, kBatch, pointers_.data(), present); });
    if (!expect(status, "gathering items")) return;
    for (size_t place = 0; place < kBatch; ++place) {
      if (!present[place]) continue;
      verify(place, &rows_[place]);
      if (rows_[place] != before[place]) control_.found_violation("an item's key leads to other rows");
      control_.gathered_again.fetch_add(1);
    }
  }

  template <class T>
  T value(size_t output, size_t place, size_t row) const {
    T number;
    std::memcpy(&number, buffers_[output].data() + place * plan_.outputs[output].item_bytes + row * sizeof number,
                sizeof number);
    return number;
  }

  void verify(size_t place, std::vector<Identity>* rows) {
    const std::string wrong = find_wrong(place, rows);
    if (!wrong.empty()) return control_.found_torn(wrong.c_str());
    ItemNote note;
    if (!control_.find_item(table().region().leaf_of_key(index_, keys_[place]), &note) || note.key != keys_[place])
      return;
    std::vector<Identity> expected;
    for (uint32_t w = 0; w < kItemWindows; ++w) {
      Identity who{note.windows[w].tag, note.windows[w].episode, note.windows[w].step};
      for (uint32_t row = 0; row < note.windows[w].num_rows; ++row) {
        expected.push_back(who);
        for (uint32_t k = 0; k < kItemStrides[w]; ++k) advance(&who, options_.stateless);
      }
    }
    if (expected != *rows) control_.found_violation("an item comes with other rows than it was inserted with");
    control_.items_known.fetch_add(1);
  }

  // Verifies every byte of every row of every window, and the item's own column. Returns "" if all are right.
  std::string find_wrong(size_t place, std::vector<Identity>* rows) {
    rows->clear();
    for (uint32_t w = 0; w < kItemWindows; ++w) {
      const std::string wrong = find_wrong_in(w, place, rows);
      if (!wrong.empty()) return "item: " + wrong;
    }
    if (rows->empty()) return "item: no row";
    const Identity& first = rows->front();
    expected_.resize(kOwnBytes);
    write_cell(expected_.data(), kOwnBytes, first.tag, first.episode, first.step, kOwnBytes);
    return std::memcmp(expected_.data(), buffers_[kOwn].data() + place * kOwnBytes, kOwnBytes) == 0
               ? ""
               : "item: its own column";
  }

  // Verifies the rows of one window, and the zeros after them.
  std::string find_wrong_in(uint32_t window, size_t place, std::vector<Identity>* rows) {
    const size_t at = window * kPlaces, length = kItemRows[window];
    const auto num_rows = static_cast<size_t>(value<int64_t>(at + kNumSteps, place, 0));
    if (num_rows > length) return "a window of " + std::to_string(num_rows) + " rows";
    for (size_t row = 0; row < length; ++row) {
      Identity who;
      const std::byte* step = cell(at + kStep, place, row, length);
      std::memcpy(&who.tag, step, 8);
      std::memcpy(&who.episode, step + 8, 4);
      std::memcpy(&who.step, step + 12, 4);
      for (const size_t output : {at + kState, at + kPicture, at + kStep}) {
        const size_t num_bytes = plan_.outputs[output].item_bytes / length;
        expected_.assign(num_bytes, std::byte{0});
        if (row < num_rows)
          write_cell(expected_.data(), num_bytes, who.tag, who.episode, who.step, plan_.outputs[output].column);
        if (std::memcmp(expected_.data(), cell(output, place, row, length), num_bytes) != 0)
          return plan_.outputs[output].name + " of row " + std::to_string(row);
      }
      if (row >= num_rows) continue;
      rows->push_back(who);
      if (value<float>(at + kReward, place, row) != reward_of(who.tag, who.episode, who.step)) return "reward";
      if (value<int64_t>(at + kEpisodeStep, place, row) != who.step) return "episode_step";
      if (value<uint8_t>(at + kFirst, place, row) != (who.step == 0 ? 1 : 0)) return "first";
      if (value<int64_t>(at + kPolicyVersion, place, row) != version_of(who.tag, who.episode)) return "policy_version";
    }
    return {};
  }

  const std::byte* cell(size_t output, size_t place, size_t row, size_t length) const {
    const size_t item_bytes = plan_.outputs[output].item_bytes;
    return buffers_[output].data() + place * item_bytes + row * (item_bytes / length);
  }

  uint32_t index_ = 0;
  GatherPlan plan_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<std::byte*> pointers_;
  std::vector<std::byte> expected_;
  int64_t keys_[kBatch] = {};
  std::vector<Identity> rows_[kBatch];
};

}  // namespace stress
