#include "relive/table/reading.hpp"

#include "relive/read/row_source.hpp"
#include "relive/read/shuffle.hpp"
#include "relive/table/by_key.hpp"
#include "relive/table/credits.hpp"
#include "relive/table/draw_batch.hpp"
#include "relive/table/tiered.hpp"

namespace relive {

Status make_plan(Table& table, uint32_t index, const std::vector<std::string>& names, GatherPlan* plan) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  return make_plan(table.region(), index, names, plan);
}

Status sample(Table& table, const DrawRequest& request, double timeout_s) {
  if (request.plan != nullptr && request.plan->needs_bulk && request.num_items > 0)
    return StagedReader(table).sample(request, timeout_s);
  return draw_batch(table, request, timeout_s);
}

Status claim(Table& table, const DrawRequest& request, double timeout_s) {
  {
    Entered entered(table, true);
    RELIVE_RETURN_IF_ERROR(entered.status());
    const Region& r = table.region();
    RELIVE_RETURN_IF_ERROR(check_keys(r, request.index, request.keys, request.num_items));
    *request.num_live_items = r.header->index_state[request.index].live_items.load(std::memory_order_relaxed);
  }
  return draw_batch(table, request, timeout_s);
}

Status sample_ragged(Table& table, const DrawRequest& request, double timeout_s) {
  request.ragged->begin(request.num_items);
  RELIVE_RETURN_IF_ERROR(sample(table, request, timeout_s));
  return request.ragged->finish();
}

Status gather_ragged(Table& table, const GatherPlan& plan, const int64_t* keys, size_t count, RaggedBatch* ragged,
                     uint8_t* present) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  RELIVE_RETURN_IF_ERROR(check_keys(table.region(), plan.index, keys, count));
  ragged->begin(count);
  const ByKey asked{plan, keys, count, nullptr, present, count};
  if (plan.needs_bulk) {
    RELIVE_RETURN_IF_ERROR(StagedReader(table).gather_ragged(asked, ragged));
  } else {
    FrameSource frames(table.region());
    thread_local ByKeyScratch scratch;
    RELIVE_RETURN_IF_ERROR(gather_ragged(table, asked, ragged, frames, &scratch));
  }
  return ragged->finish();
}

Status gather(Table& table, const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out,
              uint8_t* present) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  RELIVE_RETURN_IF_ERROR(check_keys(table.region(), plan.index, keys, count));
  if (plan.needs_bulk) return StagedReader(table).gather(plan, keys, count, out, present);
  FrameSource frames(table.region());
  thread_local ByKeyScratch scratch;
  return gather_by_key(table, {plan, keys, count, out, present, count}, frames, &scratch);
}

Status commit_held(Table& table, uint32_t index, int64_t n) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  commit_credit(table, index, n);
  return {};
}

Status return_held(Table& table, uint32_t index, int64_t n, const Positions& positions) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  return_positions(table.region(), index, positions);
  return_credit(table, index, n);
  return {};
}

}  // namespace relive
