#include "relive/table/claim_keys.hpp"

#include <algorithm>

#include "relive/table/claims.hpp"
#include "relive/table/credits.hpp"
#include "relive/table/draw_waits.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kChunk = 256;  // keys claimed in one critical section (rule C3)

Status claim_each(const DrawCall& call, std::vector<Claimed>* claimed, int64_t* num_taken) {
  const Region& r = call.r;
  const DrawRequest& request = call.request;
  const uint32_t index = request.index;
  const Leaves leaves(r, index);
  const ItemMap& map = r.map(index);
  for (size_t begin = 0; begin < request.num_items; begin += kChunk) {
    Locked locked(call.table.door(), call.deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t i = begin; i < std::min(request.num_items, begin + kChunk); ++i) {
      const uint64_t slot = r.leaf_of_key(index, request.keys[i]);
      const uint64_t word = map.word(slot);
      const bool is_there = Region::is_used(word) && r.key_generation(request.keys[i]) == Region::generation_of(word);
      request.taken[i] = is_there && leaves.is_drawable(leaves.state(slot)) ? 1 : 0;
      if (!request.taken[i]) continue;
      *num_taken += 1;
      if (r.max_times(index) != 0) claim_use(call.table, locked.held(), index, slot, word, claimed);
    }
  }
  return {};
}

}  // namespace

Status claim_keys(const DrawCall& call, std::vector<Claimed>* claimed) {
  const uint32_t index = call.request.index;
  claimed->clear();
  claimed->reserve(call.request.num_items);  // memory may lack, so before anything is in flight
  RELIVE_RETURN_IF_ERROR(reserve_draw(call));
  const int64_t num_live = call.r.header->index_state[index].live_items.load(kRelaxed);
  int64_t num_taken = 0;
  Status status = claim_each(call, claimed, &num_taken);
  // An item that another call published or removed meanwhile may not be counted, but it was live.
  *call.request.num_live_items = std::max<int64_t>(num_taken > 0 ? 1 : 0, num_live);
  if (!status.ok()) {
    const Deadline deadline = status.code() == Code::kInterrupted ? Deadline::after(0.0) : call.deadline;
    undo_claims(call.table, index, *claimed, deadline);
    claimed->clear();
    num_taken = 0;
  } else {
    free_places(call.table, index, *claimed);
    decide_claims(call.table, index, *claimed, false);
  }
  if (num_taken < call.num_items()) return_credit(call.table, index, call.num_items() - num_taken);
  if (num_taken > 0) commit_credit(call.table, index, num_taken);
  return status;
}

}  // namespace relive
