// The source of the rows of a gather: the frames of the region, or the staged rows of a tier (table/tiered.hpp).
//
// Owns:    a source lives for one call.
// Locking: none (rules G2 to G4); the caller checks the words again.
// Cost:    one virtual call a round, none an item.
#pragma once

#include "relive/read/gather.hpp"

namespace relive {

class RowSource {
 public:
  virtual ~RowSource() = default;
  // Resolves windows[which[0 .. count)], which stand for items, and copies their rows; out[o] has room for `batch`
  // rows. A window is not ok if a part of it is gone or unavailable now.
  virtual Status read(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, size_t batch,
                      Runs* runs, std::byte* const* out) = 0;
};

class FrameSource final : public RowSource {
 public:
  explicit FrameSource(const Region& region) : r_(region) {}
  Status read(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, size_t batch, Runs* runs,
              std::byte* const* out) override;

 private:
  const Region& r_;
};

// Finds out by key which of windows[which[0 .. count)] stand for an item now; reads the page's word before the leaf's
// state (rule G2). Moves these to the front of which and returns their number.
size_t look_up(const Region& r, const GatherPlan& plan, const int64_t* keys, Window* windows, uint32_t* which,
               size_t count);

}  // namespace relive
