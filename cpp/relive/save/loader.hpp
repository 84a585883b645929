// A new table from a save (rule J6): first its state, then the images of its pages in any order, then recovery.
//
// Owner:   a Loader owns the table until finish(). No other process sees the table before that.
// Locking: none: no other process has the region, and a tier does not spill by itself yet. One thread.
// Cost:    make() O(slots); put() one pass over the image for its sum and one to copy it; finish() a recovery and a
//          check of the whole table.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "relive/save/areas.hpp"
#include "relive/save/image.hpp"
#include "relive/save/names.hpp"
#include "relive/table/table.hpp"

namespace relive {

// One area of a save, found by name and index.
struct LoadedArea {
  std::string name;
  uint32_t index;
  const std::byte* bytes;
  uint64_t num_bytes;
};

struct SavedState {
  NameShape shape;
  SavedNumbers numbers;
  std::vector<LoadedArea> areas;
  uint64_t entropy = 0;  // chance, for the first generations of new keys (rule J4)
};

class Loader final {
 public:
  // config: of the saved table, with its page_len; storage, capacity and max_lanes may differ. Keys keep their meaning if
  // that is possible. state: borrowed until finish().
  static Status make(const TableConfig& config, const std::string& path, const SavedState& state,
                     std::unique_ptr<Loader>* out);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  bool keeps_keys() const { return names_->keeps_keys(); }
  // Whether the rows of a saved page are loaded. A page that is too old for a smaller capacity is not.
  bool wants(uint64_t page) const { return page < state_.shape.num_pages && names_->page(page) != kNoPage; }
  Status put(uint64_t page, const std::byte* image, size_t num_bytes);
  Status finish(std::unique_ptr<Table>* out);

 private:
  explicit Loader(const SavedState& state) : state_(state) {}
  Status check_state();
  void choose_pages(const TableConfig& config);
  void set_floor();
  void place_pages();
  void place_leaves();
  void place_records();
  void place_lanes();
  void settle();
  void restore_rank_orders(Held& held);
  Status take_bulk_frame(uint64_t page);
  const LoadedArea* area(const std::string& name, uint32_t index) const;
  template <class T>
  const T* entries(const char* name, uint32_t index) const {
    return reinterpret_cast<const T*>(area(name, index)->bytes);
  }

  const SavedState& state_;
  std::unique_ptr<Table> table_;
  std::optional<SavedNames> names_;
  std::optional<ImageForm> form_;   // of the loaded table
  std::vector<uint8_t> has_image_;  // of each saved page
  uint64_t num_pages_in_use_ = 0;   // of the loaded table
  uint64_t next_cell_ = 0;
  std::vector<uint32_t> closed_;  // pages that were OPEN in the save, and of no lane that went on: they have no ticket
  uint64_t num_cells_ = 0;
};

}  // namespace relive
