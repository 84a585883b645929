// Notes of the writers and inserters of the stress programme for its samplers: the step of a row's key, the rows of an
// item. A later note may overwrite the same place. A reader that meets a half-written note finds none.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "relive/words/rng.hpp"

namespace stress {

struct RowNote {
  int64_t key;
  uint64_t tag;
  uint32_t episode, step;
};

struct ItemNote {
  int64_t key;
  uint64_t has_window;
  struct {
    uint64_t tag;
    uint32_t episode, step;
    uint64_t num_rows;
  } windows[3];
};

// When the call began that ends an episode after its last row.
struct EndNote {
  uint64_t tag, episode, begun_us;
};

// A value of whole words with a checksum, which tells a note that two writers mixed or that one did not finish.
template <class Note>
class Noted final {
 public:
  void store(const Note& note) {
    uint64_t words[kWords];
    std::memcpy(words, &note, sizeof note);
    for (size_t k = 0; k < kWords; ++k) words_[k].store(words[k]);
    sum_.store(sum_of(words));
  }
  bool load(Note* note) const {
    uint64_t words[kWords];
    for (size_t k = 0; k < kWords; ++k) words[k] = words_[k].load();
    std::memcpy(note, words, sizeof *note);
    return sum_.load() == sum_of(words);
  }
  void clear() { sum_.store(0); }

 private:
  static_assert(std::is_trivially_copyable_v<Note> && sizeof(Note) % 8 == 0);
  static constexpr size_t kWords = sizeof(Note) / 8;
  static uint64_t sum_of(const uint64_t* words) {
    uint64_t sum = 1;
    for (size_t k = 0; k < kWords; ++k) sum = (sum ^ words[k]) * relive::SplitMix64::kGolden + (sum >> 29);
    return sum | 1;
  }
  std::atomic<uint64_t> words_[kWords];
  std::atomic<uint64_t> sum_;
};

}  // namespace stress
