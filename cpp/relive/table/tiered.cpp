// Reading from a tiered table: batches drawn ahead, their rows read ahead, copied, looked at once more.
//
// A tiered table gathers by key throughout: a draw yields keys, and keys stay what they are while pages move.
#include <algorithm>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/pages/hold.hpp"
#include "relive/read/rows.hpp"
#include "relive/table/table.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kRounds = 16;         // of a gather, before the pages are held still
constexpr double kReadTimeout_s = 60.0;  // a disk that does not answer; deadlines of callers are for limiters and items
constexpr double kSlice_s = 0.2;

// Where one row of a bulk column lies.
struct BulkRow {
  uint64_t page;
  uint64_t word;
  uint32_t column;
  uint32_t row;
};

BulkRow row_of(const Region& r, const Window& w, const Runs& runs, int64_t offset, uint32_t column) {
  const Run run = run_at(r, w, runs.data(), offset);
  return {run.page, run.word, column, static_cast<uint32_t>(offset & (r.page_len - 1))};
}

// Calls each(row, destination) for every bulk row a window needs, and zeros what padding leaves empty. out may be null.
template <class Each>
void for_each_row(const Region& r, const GatherPlan& plan, const Window& w, const Runs& runs, std::byte* const* out,
                  Each&& each) {
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (!output.is_bulk) continue;
    const uint64_t num_bytes = r.columns[output.column].num_bytes;
    const uint32_t ahead = output.source == Source::kNext ? w.num_steps : 0;
    const int64_t newest = int64_t{r.offset_of(w.slot)} + ahead;
    const uint32_t before = w.episode_step + ahead;
    std::byte* to = out == nullptr ? nullptr : out[o] + w.row * output.item_bytes;
    const bool pads_zeros = r.header->indexes[plan.index].stack_pad == StackPad::kZeros;
    for (uint32_t back = output.stack; back-- > 0;) {
      if (output.stack > 1 && back > before && pads_zeros) {
        if (to != nullptr) std::memset(to, 0, num_bytes);
      } else {
        const uint32_t reach = output.stack > 1 ? std::min(back, before) : 0;
        each(row_of(r, w, runs, newest - reach, output.column), to);
      }
      if (to != nullptr) to += num_bytes;
    }
  }
}

// Calls each(unit, offset in it, bytes of the row in it) for the units a row lies in.
template <class Each>
void for_each_unit(const Region& r, const BulkRow& row, Each&& each) {
  const uint64_t unit_bytes = r.bulk.geometry->unit_bytes(row.column);
  uint64_t at = row.row * r.columns[row.column].stride, left = r.columns[row.column].num_bytes;
  while (left > 0) {
    const uint64_t offset = at % unit_bytes, size = std::min(left, unit_bytes - offset);
    each(UnitId{r.ref_of(row.page, row.word),
                r.bulk.geometry->first_unit[row.column] + static_cast<uint32_t>(at / unit_bytes)},
         offset, size);
    at += size;
    left -= size;
  }
}

struct Gathering {
  std::vector<Window> windows;
  Runs runs;
  std::vector<uint32_t> which;  // not delivered yet
  std::vector<Piece> pieces;
  std::vector<uint8_t> stale;
};

void begin_gathering(const Region& r, const int64_t* keys, size_t count, Gathering* g) {
  g->windows.assign(count, Window{});
  g->which.resize(count);
  g->stale.assign(count, 0);
  for (size_t i = 0; i < count; ++i) {
    g->which[i] = static_cast<uint32_t>(i);
    g->windows[i].slot = r.key_slot(keys[i]);
    g->windows[i].row = static_cast<uint32_t>(i);
  }
}

// Which of the windows left stand for an item; their records are resolved.
size_t find_windows(const Region& r, const GatherPlan& plan, const int64_t* keys, Gathering* g) {
  const Leaves leaves(r, plan.index);
  size_t tried = 0;
  g->runs.clear();
  for (uint32_t i : g->which) {
    Window& w = g->windows[i];
    w.word = r.words[r.page_of(w.slot)].load(std::memory_order_acquire);
    w.ok = Region::is_used(w.word) && Region::generation_of(w.word) == r.key_generation(keys[i]) &&
           leaves.is_published(w.slot);
    if (w.ok) g->which[tried++] = i;
  }
  g->which.resize(tried);
  locate(r, plan, g->windows.data(), g->which.data(), tried);
  resolve(r, plan, g->windows.data(), g->which.data(), tried, &g->runs);
  return tried;
}

// Copies what is in memory and lists what is not. Returns the rows copied.
uint64_t copy_from_ram(const Region& r, const GatherPlan& plan, std::byte* const* out, Gathering* g) {
  RELIVE_NOT_LOCKED("rows are copied under the lock");
  uint64_t copied = 0;
  g->pieces.clear();
  for (uint32_t i : g->which) {
    Window& w = g->windows[i];
    if (!w.ok) continue;
    for_each_row(r, plan, w, g->runs, out, [&](const BulkRow& row, std::byte* to) {
      const BulkPlace place = r.bulk.place(row.page);
      const ColumnLayout& column = r.columns[row.column];
      if (place.kind == BulkKind::kRam) {
        copy_bytes(to, r.bulk.frame(place.number) + column.offset + row.row * column.stride, column.num_bytes);
        ++copied;
      } else if (place.kind == BulkKind::kNone) {
        w.ok = false;
      } else {
        for_each_unit(r, row, [&](const UnitId& id, uint64_t offset, uint64_t size) {
          g->pieces.push_back({id, offset, size, to, i});
          to += size;
        });
      }
    });
  }
  return copied;
}

}  // namespace

Status Table::gather_rows(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out,
                          uint8_t* present, uint64_t ticket, const std::atomic<bool>* cancelled) {
  const Region& r = region_;
  const Deadline deadline = Deadline::after(kReadTimeout_s);
  Gathering g;
  begin_gathering(r, keys, count, &g);
  std::fill_n(present, count, uint8_t{0});
  Hold hold(door_, own_deadline());
  const uint32_t patience = RELIVE_ROUNDS(kRounds);
  Status status;
  for (uint32_t round = 0; round <= patience && !g.which.empty() && status.ok(); ++round) {
    if (round == patience) {  // pages that go faster than they are read
      Locked locked(door_, own_deadline());
      RELIVE_RETURN_IF_ERROR(locked.status());
      hold.begin(locked);
    }
    const size_t tried = find_windows(r, plan, keys, &g);
    copy_rows(r, plan, g.windows.data(), g.runs, g.which.data(), tried, count, out);
    tier_->counters().rows_from_ram.fetch_add(copy_from_ram(r, plan, out, &g), kRelaxed);
    status = tier_->staging().deliver(ticket, &g.pieces, deadline, cancelled, g.stale.data());
    acquire_fence();
    recheck(r, plan, g.windows.data(), g.runs, g.which.data(), tried);
    size_t left = 0;
    for (uint32_t i : g.which) {
      const bool is_whole = g.windows[i].ok && g.stale[i] == 0;
      g.stale[i] = 0;
      if (is_whole) {
        present[i] = 1;
      } else {
        g.which[left++] = i;  // gone, moved or spilled meanwhile: the next round tells
      }
    }
    g.which.resize(left);
  }
  hold.end();
  if (!status.ok()) return status;
  RELIVE_PROMISE(g.which.empty(), "an item went while every page was held");
  for (size_t i = 0; i < count; ++i)
    if (!present[i]) zero_row(plan, static_cast<uint32_t>(i), out);
  return {};
}

Status Table::gather_tiered(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out,
                            uint8_t* present) {
  tier_->counters().on_demand_batches.fetch_add(1, kRelaxed);
  return gather_rows(plan, keys, count, out, present, tier_->staging().take_ticket(), nullptr);
}

Status Table::plan_batch(const GatherPlan& plan, size_t num_items, double timeout_s,
                         std::unique_ptr<PlannedBatch>* out) {
  auto batch = std::make_unique<PlannedBatch>();
  batch->index = plan.index;
  batch->keys.resize(num_items);
  batch->probabilities.resize(num_items);
  DrawRequest request;
  request.index = plan.index;
  request.num_items = num_items;
  request.keys = batch->keys.data();
  request.probabilities = batch->probabilities.data();
  request.num_live_items = &batch->num_live_items;
  request.hold = true;
  request.is_planned = true;
  RELIVE_RETURN_IF_ERROR(sample(request, timeout_s));
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  batch->num_held = static_cast<int64_t>(num_items);
  batch->has_claims = region_.max_times(plan.index) != 0;
  batch->ticket = tier_->staging().take_ticket();
  Gathering g;
  begin_gathering(region_, batch->keys.data(), num_items, &g);
  find_windows(region_, plan, batch->keys.data(), &g);
  for (uint32_t i : g.which) {
    if (!g.windows[i].ok) continue;
    for_each_row(region_, plan, g.windows[i], g.runs, nullptr, [&](const BulkRow& row, std::byte*) {
      for_each_unit(region_, row, [&](const UnitId& id, uint64_t, uint64_t) { batch->expected.push_back(id); });
    });
  }
  std::sort(batch->expected.begin(), batch->expected.end());
  batch->expected.erase(std::unique(batch->expected.begin(), batch->expected.end()), batch->expected.end());
  tier_->staging().expect(batch->ticket, batch->expected);
  *out = std::move(batch);
  return {};
}

// Items that went between draw and gather: as many fresh draws, with the credit of those that went.
Status Table::redraw(PlannedBatch& batch, const std::vector<uint32_t>& gone, const Deadline& deadline) {
  const auto n = static_cast<int64_t>(gone.size());
  std::vector<int64_t> keys(gone.size());
  std::vector<double> probabilities(gone.size());
  DrawRequest request;
  request.index = batch.index;
  request.num_items = gone.size();
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  request.hold = true;
  request.is_planned = true;
  if (batch.has_claims) {
    for (size_t k = 0; k < gone.size(); ++k) keys[k] = batch.keys[gone[k]];
    release_claims(keys.data(), keys.size());
  }
  return_credit(batch.index, n);
  batch.num_held -= n;
  Status status;
  do {
    status = sample(request, std::min(kSlice_s, deadline.remaining_s()));
  } while (status.code() == Code::kDeadlineExceeded && !batch.cancelled.load() && !deadline.passed());
  RELIVE_RETURN_IF_ERROR(std::move(status));
  batch.num_held += n;
  for (size_t k = 0; k < gone.size(); ++k) {
    batch.keys[gone[k]] = keys[k];
    batch.probabilities[gone[k]] = probabilities[k];
  }
  tier_->counters().replaced_items.fetch_add(gone.size(), kRelaxed);
  return {};
}

Status Table::gather_batch(PlannedBatch& batch, const GatherPlan& plan, std::byte* const* out, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const size_t count = batch.keys.size();
  std::vector<uint8_t> present(count);
  std::vector<std::byte*> row_out(plan.outputs.size());
  Status status = gather_rows(plan, batch.keys.data(), count, out, present.data(), batch.ticket, &batch.cancelled);
  while (status.ok()) {
    std::vector<uint32_t> gone;
    for (uint32_t i = 0; i < count; ++i)
      if (!present[i]) gone.push_back(i);
    if (gone.empty()) break;
    status = redraw(batch, gone, deadline);
    for (uint32_t i : gone) {  // few, and seldom: one by one
      if (!status.ok()) break;
      for (size_t o = 0; o < plan.outputs.size(); ++o) row_out[o] = out[o] + i * plan.outputs[o].item_bytes;
      status = gather_rows(plan, &batch.keys[i], 1, row_out.data(), &present[i], batch.ticket, &batch.cancelled);
    }
  }
  drop_batch(batch);
  return status;
}

void Table::drop_batch(PlannedBatch& batch) {
  Entered entered(*this, true);
  if (!entered.status().ok()) return;
  tier_->staging().forget(batch.ticket, batch.expected);
  batch.expected.clear();
  if (!batch.has_claims) return;
  batch.has_claims = false;
  release_claims(batch.keys.data(), batch.keys.size());
}

// What was drawn for the last time has been read: its page may go.
void Table::release_claims(const int64_t* keys, size_t count) {
  Locked locked(door_, Deadline::after(std::numeric_limits<double>::infinity()).deaf());
  if (!locked.status().ok()) return;
  for (size_t k = 0; k < count; ++k) {
    const int64_t key = keys[k];
    const uint64_t page = region_.page_of(region_.key_slot(key));
    if (Region::generation_of(region_.words[page].load(kRelaxed)) != region_.key_generation(key)) continue;
    std::atomic<uint32_t>& claims = region_.bulk.planned[page];
    if (claims.load(kRelaxed) > 0 && claims.fetch_sub(1, kRelaxed) == 1) free_if_lifeless(locked.held(), page);
  }
  locked.room_came();
}

Status Table::sample_tiered(const DrawRequest& request, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  std::unique_ptr<PlannedBatch> batch;
  RELIVE_RETURN_IF_ERROR(plan_batch(*request.plan, request.num_items, timeout_s, &batch));
  tier_->counters().on_demand_batches.fetch_add(1, kRelaxed);
  Status status = gather_batch(*batch, *request.plan, request.out, deadline.remaining_s());
  if (!status.ok()) {
    return_credit(batch->index, batch->num_held);
    return status;
  }
  std::copy(batch->keys.begin(), batch->keys.end(), request.keys);
  std::copy(batch->probabilities.begin(), batch->probabilities.end(), request.probabilities);
  if (request.num_live_items != nullptr) *request.num_live_items = batch->num_live_items;
  if (!request.hold) commit_credit(batch->index, batch->num_held);
  return {};
}

Status Table::wait_for_bulk(const Deadline& deadline) { return tier_->wait_for_frame(deadline); }

void Table::wake_spill_if_low() {
  if (tier_ != nullptr) tier_->wake_if_low();
}

void Table::note_late_batch() {
  if (tier_ != nullptr) tier_->counters().late_batches.fetch_add(1, kRelaxed);
}

Status Table::tier_stats(TierStats* out) {
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  tier_->stats(out);
  return {};
}

Status Table::spill_all_pages(uint64_t* spilled) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  *spilled = 0;
  for (size_t count = 1; tier_ != nullptr && count > 0; *spilled += count)
    RELIVE_RETURN_IF_ERROR(tier_->spill_some(64, own_deadline(), &count));
  return {};
}

void Table::fail_disk(int read_error, int write_error) {
  if (tier_ == nullptr) return;
  tier_->file().fail_reads(read_error);
  tier_->file().fail_writes(write_error);
}

}  // namespace relive
