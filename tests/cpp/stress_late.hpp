// Late columns in the stress programme: workers that complete rows in any order, some of them never, some of them
// twice.
#pragma once

#include "stress_workers.hpp"

namespace stress {

class CompleterWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  static constexpr size_t kLooks = 96;

  // Completes neighbouring rows, so that windows become complete, in random order. Some calls name a row that is
  // complete already, and must be refused as a whole.
  void step() override {
    const bool is_refused = random_.below(8) == 0;
    const uint64_t first = random_.below(kRowNotes), most = 1 + random_.below(kLooks);
    std::vector<RowNote> rows;
    for (uint64_t k = 0; k < kLooks && rows.size() < most; ++k) {
      RowNote row;
      const uint64_t place = (first + k) % kRowNotes;
      if (!control_.find_row(place, &row) || mix(static_cast<uint64_t>(row.key)) % 40 == 0) continue;  // never
      const bool is_done = control_.completed[place].load() == row.key;
      if (!is_done || (is_refused && random_.below(8) == 0)) rows.push_back(row);
    }
    for (size_t k = rows.size(); k > 1; --k) std::swap(rows[k - 1], rows[random_.below(k)]);
    while (!rows.empty() && complete(&rows)) {
    }
  }

  // Makes one call. Returns true if a row was refused: the row is taken off the list, and the caller repeats the call.
  bool complete(std::vector<RowNote>* rows) {
    const size_t row_bytes = sizeof(float) + kVerdictBytes;
    std::vector<int64_t> keys;
    std::vector<std::byte> cells(rows->size() * row_bytes);
    bool has_done = false;
    for (size_t k = 0; k < rows->size(); ++k) {
      const RowNote& row = (*rows)[k];
      const float reward = reward_of(row.tag, row.episode, row.step);
      std::memcpy(cells.data() + k * row_bytes, &reward, sizeof reward);
      write_verdict(cells.data() + k * row_bytes + sizeof reward, row.tag, row.episode, row.step, random_.next());
      keys.push_back(row.key);
      has_done |= control_.completed[place_of(row.key)].load() == row.key;
    }
    int64_t applied = 0;
    const Status status = timed(10.0, "complete", [&] {
      return relive::complete_rows(table(), keys.data(), keys.size(), cells.data(), cells.size(), &applied);
    });
    control_.rows_completed.fetch_add(static_cast<uint64_t>(applied));
    if (status.code() == Code::kAlreadyCompleted) {
      const auto position = static_cast<size_t>(status.fields()[0].integer);
      control_.completed[place_of(keys[position])].store(keys[position]);
      if (applied != 0) return false;
      rows->erase(rows->begin() + static_cast<std::ptrdiff_t>(position));
      return true;
    }
    if (!expect(status, "completing")) return false;
    if (has_done && applied == static_cast<int64_t>(keys.size()))
      control_.found_violation("a row was completed a second time");
    for (int64_t key : keys) control_.completed[place_of(key)].store(key);  // a row that is gone never returns
    return false;
  }

  uint64_t place_of(int64_t key) { return table().region().key_slot(key) % kRowNotes; }
};

}  // namespace stress
