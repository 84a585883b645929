// Page ids, refs and keys of a saved table, as names of the table that is loaded from it.
//
// Owner:   a value. Locking: none. Cost: O(1) a name.
#pragma once

#include <cstdint>
#include <vector>

#include "relive/words/region.hpp"

#include "relive/pages/sound.hpp"

namespace relive {

class SavedNames final {
 public:
  // words: the saved page words. page_of: for each saved page the page that gets its rows, or kNoPage. first_generation:
  // of new keys; 0: keys keep their meaning.
  SavedNames(const NameShape& from, const Region& to, const uint64_t* words, std::vector<uint32_t> page_of,
             uint64_t first_generation)
      : from_(from), to_(to), words_(words), page_of_(std::move(page_of)), first_generation_(first_generation) {}

  bool keeps_keys() const { return first_generation_ == 0; }
  uint32_t page(uint64_t saved) const { return page_of_[saved]; }
  uint64_t generation(uint64_t saved_generation) const { return keeps_keys() ? saved_generation : first_generation_; }
  // The saved page that a ref led to, if it was in use and its rows are loaded; else kNoPage.
  uint64_t page_of_ref(uint64_t ref) const {
    return found(ref & ((uint64_t{1} << from_.page_bits()) - 1), ref >> from_.page_bits());
  }
  // A ref that leads nowhere stays one: rows are lost behind it. 0 stays 0.
  uint64_t ref(uint64_t saved) const {
    if (saved == 0) return 0;
    const uint64_t page = page_of_ref(saved);
    if (page == kNoPage) return to_.geometry->num_pages;  // generation 0, and no page of that number
    return generation(saved >> from_.page_bits()) << to_.page_bits | page_of_[page];
  }
  // 0, which is no key, for a row that is not loaded.
  uint64_t key(uint64_t saved) const {
    const uint64_t slot = saved & ((uint64_t{1} << from_.slot_bits) - 1);
    const uint64_t generation_of_key = (saved & ((uint64_t{1} << kLeafBits) - 1)) >> from_.slot_bits;
    const uint64_t page = found(slot >> from_.page_shift, generation_of_key);
    if (saved == 0 || page == kNoPage) return 0;
    const uint64_t row = slot & ((uint64_t{1} << from_.page_shift) - 1);
    return to_.geometry->shard << kLeafBits | generation(generation_of_key) << to_.geometry->slot_bits |
           to_.slot_of(page_of_[page], static_cast<uint32_t>(row));
  }

 private:
  uint64_t found(uint64_t page, uint64_t generation) const {
    const bool is_there = page < from_.num_pages && Region::is_used(words_[page]) &&
                          Region::generation_of(words_[page]) == generation && page_of_[page] != kNoPage;
    return is_there ? page : uint64_t{kNoPage};
  }

  const NameShape from_;
  const Region& to_;
  const uint64_t* const words_;
  const std::vector<uint32_t> page_of_;
  const uint64_t first_generation_;
};

}  // namespace relive
