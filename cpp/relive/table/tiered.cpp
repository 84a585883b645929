#include "relive/table/tiered.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include "relive/read/shuffle.hpp"
#include "relive/table/by_key.hpp"
#include "relive/table/credits.hpp"
#include "relive/table/draw_batch.hpp"
#include "relive/table/staged_source.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// For a disk that does not answer. The deadlines of callers are for limiters and items.
constexpr double kReadTimeout_s = 60.0;
constexpr double kSlice_s = 0.2;

StagedSource source_of(Table& table, uint64_t ticket, const std::atomic<bool>* cancelled) {
  return {table.region(), *table.tier(), ticket, Deadline::after(kReadTimeout_s), cancelled};
}

}  // namespace

Status StagedReader::gather(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out,
                            uint8_t* present) {
  tier().counters().on_demand_batches.fetch_add(1, kRelaxed);
  StagedSource source = source_of(table_, tier().staging().take_ticket(), nullptr);
  ByKeyScratch scratch;
  return gather_by_key(table_, {plan, keys, count, out, present, count}, source, &scratch);
}

Status StagedReader::gather_ragged(const ByKey& asked, RaggedBatch* ragged) {
  tier().counters().on_demand_batches.fetch_add(1, kRelaxed);
  StagedSource source = source_of(table_, tier().staging().take_ticket(), nullptr);
  ByKeyScratch scratch;
  return relive::gather_ragged(table_, asked, ragged, source, &scratch);
}

Status StagedReader::plan_batch(const GatherPlan& plan, size_t num_items, const Where* where, double timeout_s,
                                std::unique_ptr<PlannedBatch>* out, std::vector<Claimed>* claims) {
  auto batch = std::make_unique<PlannedBatch>();
  batch->index = plan.index;
  batch->where = where;
  batch->keys.resize(num_items);
  batch->probabilities.resize(num_items);
  if (plan.has_goals) batch->picks.resize(num_items);
  DrawRequest request;
  request.index = plan.index;
  request.num_items = num_items;
  request.where = where;
  request.keys = batch->keys.data();
  request.probabilities = batch->probabilities.data();
  request.picks = plan.has_goals ? batch->picks.data() : nullptr;
  request.num_live_items = &batch->num_live_items;
  request.hold = true;
  request.is_planned = true;
  request.claims = batch->claims = claims;
  Positions positions;
  request.positions = &positions;
  RELIVE_RETURN_IF_ERROR(draw_batch(table_, request, timeout_s));
  batch->first_position = positions.first;
  batch->end_position = positions.end;
  Entered entered(table_, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  batch->num_held = static_cast<int64_t>(num_items);
  batch->has_claims =
      claims == nullptr && table_.region().max_times(plan.index) != 0 && !table_.region().map(plan.index).is_explicit;
  batch->ticket = tier().staging().take_ticket();
  try {
    expect_rows(plan, *batch);
  } catch (const std::bad_alloc&) {  // nothing of a batch that the caller does not get stays in flight
    drop_batch(*batch);
    give_back(*batch);
    return Status(Code::kNoMemory);
  }
  *out = std::move(batch);
  return {};
}

// Tells the staging which units the batch will need.
void StagedReader::expect_rows(const GatherPlan& asked, PlannedBatch& batch) {
  GatherPlan plan = asked;
  plan.is_ragged = false;  // the same rows; their places in the output do not matter
  const Region& r = table_.region();
  std::vector<Window> windows(batch.keys.size());
  std::vector<uint32_t> which(batch.keys.size());
  Runs runs;
  for (size_t i = 0; i < batch.keys.size(); ++i) {
    which[i] = static_cast<uint32_t>(i);
    windows[i].slot = r.leaf_of_key(plan.index, batch.keys[i]);
    windows[i].row = static_cast<uint32_t>(i);
  }
  const size_t found = look_up(r, plan, batch.keys.data(), windows.data(), which.data(), which.size());
  locate(r, plan, windows.data(), which.data(), found);
  resolve(r, plan, windows.data(), which.data(), found, &runs);
  list_units(r, plan, windows.data(), which.data(), found, runs, &batch.expected);
  tier().staging().expect(batch.ticket, batch.expected);
}

namespace {

// The keys of a batch without those at the positions `gone`, which are sorted.
std::vector<int64_t> others_of(const PlannedBatch& batch, const std::vector<uint32_t>& gone) {
  std::vector<int64_t> keys;
  keys.reserve(batch.keys.size() - gone.size());
  for (size_t i = 0, next = 0; i < batch.keys.size(); ++i) {
    if (next < gone.size() && gone[next] == i) {
      ++next;
    } else {
      keys.push_back(batch.keys[i]);
    }
  }
  return keys;
}

}  // namespace

// Items went between draw and gather: draws as many others, with the credit of those that went.
Status StagedReader::redraw(PlannedBatch& batch, const std::vector<uint32_t>& gone, const Deadline& deadline) {
  const auto n = static_cast<int64_t>(gone.size());
  std::vector<int64_t> keys(gone.size());
  std::vector<double> probabilities(gone.size()), picks(batch.picks.empty() ? 0 : gone.size());
  DrawRequest request;
  request.index = batch.index;
  request.num_items = gone.size();
  request.where = batch.where;
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  request.picks = picks.empty() ? nullptr : picks.data();
  request.hold = true;
  request.is_planned = true;
  request.claims = batch.claims;
  const std::vector<int64_t> others = others_of(batch, gone);
  request.beside = others.data();
  request.num_beside = others.size();
  if (batch.has_claims) {
    for (size_t k = 0; k < gone.size(); ++k) keys[k] = batch.keys[gone[k]];
    release_claims(keys.data(), keys.size());
  }
  return_credit(table_, batch.index, n);
  batch.num_held -= n;
  Status status;
  do {
    status = draw_batch(table_, request, std::min(kSlice_s, deadline.remaining_s()));
  } while (status.code() == Code::kDeadlineExceeded && !batch.cancelled.load() && !deadline.passed());
  RELIVE_RETURN_IF_ERROR(std::move(status));
  batch.num_held += n;
  for (size_t k = 0; k < gone.size(); ++k) {
    batch.keys[gone[k]] = keys[k];
    batch.probabilities[gone[k]] = probabilities[k];
    if (!picks.empty()) batch.picks[gone[k]] = picks[k];
  }
  tier().counters().replaced_items.fetch_add(gone.size(), kRelaxed);
  return {};
}

Status StagedReader::gather_batch(PlannedBatch& batch, const GatherPlan& plan, std::byte* const* out,
                                  RaggedBatch* ragged, double timeout_s) {
  Status status;
  try {
    status = gather_all(batch, plan, out, ragged, timeout_s);
  } catch (const std::bad_alloc&) {
    status = Status(Code::kNoMemory);
  }
  drop_batch(batch);
  return status;
}

Status StagedReader::gather_all(PlannedBatch& batch, const GatherPlan& plan, std::byte* const* out, RaggedBatch* ragged,
                                double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(table_, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const size_t count = batch.keys.size();
  std::vector<uint8_t> present(count);
  ByKeyScratch scratch;
  const auto gather_some = [&](size_t first, size_t num_items) {
    StagedSource source = source_of(table_, batch.ticket, &batch.cancelled);
    const double* const picks = batch.picks.empty() ? nullptr : batch.picks.data() + first;
    const ByKey asked{plan, batch.keys.data() + first, num_items, out, present.data() + first, count, first, nullptr,
                      picks};
    return ragged != nullptr ? relive::gather_ragged(table_, asked, ragged, source, &scratch)
                             : gather_by_key(table_, asked, source, &scratch);
  };
  if (ragged != nullptr) ragged->begin(count);
  Status status = gather_some(0, count);
  while (status.ok()) {
    std::vector<uint32_t> gone;
    for (uint32_t i = 0; i < count; ++i)
      if (!present[i]) gone.push_back(i);
    if (gone.empty()) break;
    status = redraw(batch, gone, deadline);
    for (uint32_t i : gone) {  // rare, and few: one by one
      if (!status.ok()) break;
      status = gather_some(i, 1);
    }
  }
  return status;
}

void StagedReader::give_back(PlannedBatch& batch) {
  if (batch.claims != nullptr) {
    undo_claims(table_, batch.index, *batch.claims, table_.own_deadline());
    batch.claims->clear();
  }
  return_positions(table_.region(), batch.index, {batch.first_position, batch.end_position});
  batch.first_position = batch.end_position = 0;
  return_credit(table_, batch.index, batch.num_held);
  batch.num_held = 0;
}

void StagedReader::drop_batch(PlannedBatch& batch) {
  Entered entered(table_, true);
  if (!entered.status().ok()) return;
  tier().staging().forget(batch.ticket, batch.expected);
  batch.expected.clear();
  if (!batch.has_claims) return;
  batch.has_claims = false;
  release_claims(batch.keys.data(), batch.keys.size());
}

// Items that were drawn for the last time have been read: their pages may go.
void StagedReader::release_claims(const int64_t* keys, size_t count) {
  Region& r = table_.region();
  Locked locked(table_.door(), Deadline::after(std::numeric_limits<double>::infinity()).deaf());
  if (!locked.status().ok()) return;
  for (size_t k = 0; k < count; ++k) {
    const int64_t key = keys[k];
    const uint64_t page = r.page_of(r.key_slot(key));
    if (Region::generation_of(r.words[page].load(kRelaxed)) != r.key_generation(key)) continue;
    forget_claim(locked.held(), page);
    free_if_lifeless(locked.held(), page);
  }
  locked.room_came();
}

Status StagedReader::sample(const DrawRequest& request, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  std::unique_ptr<PlannedBatch> batch;
  RELIVE_RETURN_IF_ERROR(
      plan_batch(*request.plan, request.num_items, request.where, timeout_s, &batch, request.claims));
  tier().counters().on_demand_batches.fetch_add(1, kRelaxed);
  Status status = gather_batch(*batch, *request.plan, request.out, request.ragged, deadline.remaining_s());
  if (!status.ok()) {
    give_back(*batch);
    return status;
  }
  std::copy(batch->keys.begin(), batch->keys.end(), request.keys);
  std::copy(batch->probabilities.begin(), batch->probabilities.end(), request.probabilities);
  if (request.num_live_items != nullptr) *request.num_live_items = batch->num_live_items;
  if (request.positions != nullptr) *request.positions = {batch->first_position, batch->end_position};
  if (!request.hold) commit_credit(table_, batch->index, batch->num_held);
  return {};
}

Status tier_stats(Table& table, TierStats* out) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  table.tier()->stats(out);
  return {};
}

void note_late_batch(Table& table) {
  if (table.is_tiered()) table.tier()->counters().late_batches.fetch_add(1, kRelaxed);
}

}  // namespace relive
