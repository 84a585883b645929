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

// As many a hold as one may cut. What the deadline leaves stays noted.
Status Table::cut_left_lanes(const Deadline& deadline) {
  Status status;
  for (LeftLanes* left = left_lanes_.exchange(nullptr); left != nullptr;) {
    LeftLanes* const next = left->next;
    while (!left->lanes.empty() && status.ok()) {
      Locked locked(door_, deadline);
      status = locked.status();
      while (status.ok() && !left->lanes.empty() && locked.cut(left->lanes.back())) left->lanes.pop_back();
    }
    if (status.ok()) {
      open_writers_.fetch_sub(1);
    } else {
      leave_lanes(std::move(left->lanes));
    }
    delete left;
    left = next;
  }
  return status;
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
  const Broken broken = broken_invariant(region_, door_.scratch);
  locked.release();
  return broken.what == nullptr ? Status() : Status(Code::kCheckFailed).with_text("invariant", broken.text());
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
  if (!region_.is_row_key(key)) return Status(Code::kForeignKey).with_int("position", 0).with_int("key", key);
  Locked locked(door_, own_deadline());
  RELIVE_RETURN_IF_ERROR(locked.status());
  const Code refused = pin_under_lock(locked.held(), key, pin);
  locked.release();
  if (refused == Code::kForeignKey) return Status(refused).with_int("position", 0).with_int("key", key);
  if (refused == Code::kOk) return {};
  return Status(refused).with_int("requested", 1).with_int("window", pin ? kPins : 0);
}

Code Table::pin_under_lock(Held& held, int64_t key, bool pin) {
  const uint64_t page = region_.page_of(region_.key_slot(key));
  const uint64_t ref = region_.key_generation(key) << region_.page_bits | page;
  for (auto& slot : region_.participants[me_].pins) {
    if (slot.load(kRelaxed) != (pin ? 0 : ref)) continue;
    if (pin && region_.alive(ref) == kNoPage) return Code::kForeignKey;
    if (pin) {
      region_.header->num_pins.fetch_add(1, kRelaxed);  // first: where it is 0 nobody looks at the pins
      slot.store(ref, kRelaxed);
    } else {
      unpin(held, slot);
    }
    return Code::kOk;
  }
  return Code::kRequestTooLarge;
}

}  // namespace relive
