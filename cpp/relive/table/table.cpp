#include "relive/table/table.hpp"

#include <algorithm>

#include "relive/pages/kept.hpp"
#include "relive/pages/publish.hpp"
#include "relive/pages/recover.hpp"
#include "relive/tiers/tier.hpp"
#include "relive/words/rng.hpp"

namespace relive {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

bool Table::is_alone() {
  if (storage_->is_local()) return true;
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    if (p != me_ && region_.participants[p].live.load(kRelaxed) != 0) return false;
  return true;
}

void Table::leave_lanes(std::vector<uint32_t> lanes) {
  auto* const left = new LeftLanes{std::move(lanes), left_lanes_.load()};
  while (!left_lanes_.compare_exchange_weak(left->next, left)) {
  }
}

void Table::cut_left_lanes(Held& held) {
  for (LeftLanes* left = left_lanes_.exchange(nullptr); left != nullptr;) {
    for (uint32_t lane : left->lanes) cut_lane(held, lane);
    open_writers_.fetch_sub(1);
    LeftLanes* const next = left->next;
    delete left;
    left = next;
  }
}

Status Table::make_plan(uint32_t index, const std::vector<std::string>& names, GatherPlan* plan) {
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  return relive::make_plan(region_, index, names, plan);
}

Status Table::set_policy_version(uint32_t version) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  region_.header->policy_version.store(version, std::memory_order_release);
  return {};
}

Status Table::check() {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Locked locked(door_, own_deadline());
  RELIVE_RETURN_IF_ERROR(locked.status());
  const std::string broken = broken_invariant(region_);
  return broken.empty() ? Status() : Status(Code::kCheckFailed).with_text("invariant", broken);
}

Status Table::move_all_pages(uint64_t* moved) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  *moved = 0;
  for (uint64_t page = 0; page < region_.geometry->num_pages; ++page) {
    Locked locked(door_, own_deadline());
    RELIVE_RETURN_IF_ERROR(locked.status());
    *moved += move_page(locked.held(), page) ? 1 : 0;
  }
  return {};
}

Status Table::pin_page(int64_t key, bool pin) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  RELIVE_RETURN_IF_ERROR(check_keys(&key, 1));
  Locked locked(door_, own_deadline());
  RELIVE_RETURN_IF_ERROR(locked.status());
  const uint64_t page = region_.page_of(region_.key_slot(key));
  const uint64_t ref = region_.key_generation(key) << region_.page_bits | page;
  for (auto& slot : region_.participants[me_].pins) {
    if (slot.load(kRelaxed) != (pin ? 0 : ref)) continue;
    if (pin && region_.alive(ref) == kNoPage)
      return Status(Code::kForeignKey).with_int("position", 0).with_int("key", key);
    if (pin) {
      region_.header->num_pins.fetch_add(1, kRelaxed);  // first: where it is 0 nobody looks at the pins
      slot.store(ref, kRelaxed);
    } else {
      unpin(locked.held(), slot);
    }
    return {};
  }
  return Status(Code::kRequestTooLarge).with_int("requested", 1).with_int("window", pin ? kPins : 0);
}

}  // namespace relive
