#include "relive/pages/pin_all.hpp"

#include "relive/pages/pins.hpp"

namespace relive {

void PinAll::begin(Locked& locked) {
  if (has_begun_) return;
  pin_all_pages(locked.held(), door_.me);
  has_begun_ = true;
}

void PinAll::end() {
  if (!has_begun_) return;
  has_begun_ = false;
  if (process_id() != process_) return;  // a fork during the call made this child: the pin belongs to the parent
  RELIVE_FAIL_POINT(pins_read);
  bool is_more = false;
  {
    Locked locked(door_, deadline_);
    if (!locked.status().ok()) {
      door_.owed_unpins.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    unpin_all_pages(locked.held(), door_.me, 1);
    is_more = free_kept(locked.held(), kKeptPerSection);
    locked.room_came();
  }
  while (is_more) {  // pages still on the kept list go with the next end() or with a writer that needs a page
    Locked locked(door_, deadline_);
    if (!locked.status().ok()) return;
    is_more = free_kept(locked.held(), kKeptPerSection);
    locked.room_came();
  }
}

}  // namespace relive
