#include "relive/table/hooks.hpp"

#include "relive/pages/pins.hpp"
#include "relive/table/by_key.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

Code pin_under_lock(Held& held, uint32_t participant, int64_t key, bool pin) {
  const Region& r = held.region;
  const uint64_t page = r.page_of(r.key_slot(key));
  const uint64_t ref = r.key_generation(key) << r.page_bits | page;
  for (auto& slot : r.participants[participant].pins) {
    if (slot.load(kRelaxed) != (pin ? 0 : ref)) continue;
    if (pin && r.alive(ref) == kNoPage) return Code::kForeignKey;
    if (pin) {
      r.header->num_pins.fetch_add(1, kRelaxed);  // first: if it is 0, no process reads the pins
      slot.store(ref, kRelaxed);
    } else {
      unpin(held, slot);
    }
    return Code::kOk;
  }
  return Code::kRequestTooLarge;
}

}  // namespace

Status move_all_pages(Table& table, uint64_t* moved) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  *moved = 0;
  for (uint64_t page = 0; page < table.region().geometry->num_pages; ++page) {
    Locked locked(table.door(), table.own_deadline());
    RELIVE_RETURN_IF_ERROR(locked.status());
    *moved += move_page(locked.held(), page) ? 1 : 0;
  }
  return {};
}

Status pin_page(Table& table, int64_t key, bool pin) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const auto foreign = [key] { return Status(Code::kForeignKey).with_int("position", 0).with_int("key", key); };
  if (!table.region().is_row_key(key)) return foreign();
  Locked locked(table.door(), table.own_deadline());
  RELIVE_RETURN_IF_ERROR(locked.status());
  const Code refused = pin_under_lock(locked.held(), table.participant(), key, pin);
  locked.release();
  if (refused == Code::kForeignKey) return foreign();
  if (refused == Code::kOk) return {};
  return Status(refused).with_int("requested", 1).with_int("window", pin ? kPins : 0);
}

Status spill_all_pages(Table& table, uint64_t* spilled) {
  Entered entered(table, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  *spilled = 0;
  for (size_t count = 1; table.is_tiered() && count > 0; *spilled += count)
    RELIVE_RETURN_IF_ERROR(table.tier()->spill_some(64, table.own_deadline(), &count));
  return {};
}

void fail_disk(Table& table, int read_error, int write_error) {
  if (!table.is_tiered()) return;
  table.tier()->file().fail_reads(read_error);
  table.tier()->file().fail_writes(write_error);
}

}  // namespace relive
