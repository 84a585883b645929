#include "relive/index/leaf_areas.hpp"

#include <cmath>

namespace relive {
namespace {

class Areas final : public IndexView {
 public:
  using IndexView::IndexView;

  std::vector<LeafArea> all() const {
    const Geometry& g = *r_.geometry;
    std::vector<LeafArea> areas;
    const auto add = [&](bool is_there, const char* name, uint64_t offset, size_t leaf_bytes) {
      if (is_there) areas.push_back({name, r_.base + offset, static_cast<uint32_t>(leaf_bytes)});
    };
    const uint64_t queue = g.orders_offset[index_] + Tree::num_bytes(map().num_leaves);
    add(true, "leaves", g.trees_offset[index_], sizeof(double));
    add(true, "states", g.states_offset[index_], sizeof(uint16_t));
    add(is_bounded(), "orders", g.orders_offset[index_], sizeof(double));
    add(has_queue(), "queue", queue, sizeof(double));
    add(is_timed(), kWaitsArea, g.waits_offset[index_], sizeof(double));
    add(is_aged(), "ages", g.ages_offset[index_], sizeof(double));
    add(is_latest(), "places", g.places_offset[index_], sizeof(double));
    return areas;
  }

  void shift(Held& held, double seconds) const {
    for (uint64_t leaf = 0; leaf < map().num_leaves; ++leaf) {
      const double since = dues(Due::kWait).leaf(leaf);
      if (std::isfinite(since) && since >= 0.0) set_due(held, Due::kWait, leaf, since + seconds);
    }
    flush(held, index_);
  }
};

}  // namespace

std::vector<LeafArea> leaf_areas(const Region& r, uint32_t index) { return Areas(r, index).all(); }

void shift_waits(Held& held, uint32_t index, double seconds) {
  const Areas areas(held.region, index);
  if (areas.is_timed()) areas.shift(held, seconds);
}

}  // namespace relive
