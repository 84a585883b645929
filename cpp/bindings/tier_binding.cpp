// Tiered tables: batches that are planned first and gathered later, statistics of the tiers, hooks for tests.
#include <algorithm>
#include <limits>

#include "module.hpp"
#include "relive/table/hooks.hpp"
#include "relive/table/reading.hpp"
#include "relive/table/tiered.hpp"

namespace relive::bindings {
namespace {

// A planned batch, whose rows are read ahead, and its table. In flight until commit() or give_back(), as CoreHold.
class CorePlannedBatch final {
 public:
  CorePlannedBatch(std::shared_ptr<Table> of, std::unique_ptr<PlannedBatch> one)
      : table(std::move(of)), batch(std::move(one)) {}
  ~CorePlannedBatch() {
    give_back();
    const ReleasedGil released;  // the last owner closes the table, which may wait for its lock
    table.reset();
  }
  CorePlannedBatch(const CorePlannedBatch&) = delete;
  CorePlannedBatch& operator=(const CorePlannedBatch&) = delete;

  void commit(bool was_late) {
    if (is_settled_ || epoch_ != fork_epoch()) return;
    without_gil([&] {
      if (was_late) note_late_batch(*table);
      return commit_held(*table, batch->index, batch->num_held);
    });
    is_settled_ = true;
  }
  bool is_held() const { return !is_settled_; }
  void give_back() {
    if (is_settled_ || epoch_ != fork_epoch()) return;
    is_settled_ = true;
    const ReleasedGil released;
    if (!is_over) StagedReader(*table).drop_batch(*batch);
    // A table that is closed has given back every draw.
    (void)return_held(*table, batch->index, batch->num_held, {batch->first_position, batch->end_position});
  }

  std::shared_ptr<Table> table;
  const std::unique_ptr<PlannedBatch> batch;
  bool is_over = false;  // its rows were delivered, or will not be

 private:
  bool is_settled_ = false;
  const uint64_t epoch_ = fork_epoch();
};

CorePlannedBatch* plan_batch(const CoreTable& self, nb::handle request, double timeout_s) {
  const AskedDraw asked = asked_draw(request);
  if (asked.selection == nullptr) throw nb::type_error("plan_batch: a DrawRequest with a selection is expected");
  std::unique_ptr<PlannedBatch> batch;
  without_gil([&] {
    return StagedReader(*self.table).plan_batch(asked.selection->plan, asked.num_items, asked.where, timeout_s, &batch);
  });
  return new CorePlannedBatch(self.table, std::move(batch));
}

nb::object gather_planned_ragged(const CoreTable& self, CorePlannedBatch& planned, const CoreSelection& selection) {
  PlannedBatch& batch = *planned.batch;
  RaggedOutputs outputs(selection, batch.keys.size());
  RaggedBatch ragged(selection.plan, outputs);
  planned.is_over = true;
  const Status status = outputs.run([&]() -> Status {
    RELIVE_RETURN_IF_ERROR(
        StagedReader(*self.table)
            .gather_batch(batch, selection.plan, nullptr, &ragged, std::numeric_limits<double>::infinity()));
    return ragged.finish();
  });
  if (status.code() == Code::kInterrupted) return nb::none();
  raise_if_error(status);
  nb::list arrays = outputs.arrays();
  return nb::make_tuple(arrays, outputs.keys(batch.keys), outputs.probabilities(batch.probabilities),
                        batch.num_live_items);
}

// None if the batch was cancelled. The batch is over in both cases.
nb::object gather_planned(const CoreTable& self, CorePlannedBatch& planned, const CoreSelection& selection) {
  if (selection.plan.is_ragged) return gather_planned_ragged(self, planned, selection);
  PlannedBatch& batch = *planned.batch;
  const size_t n = batch.keys.size();
  Outputs outputs(selection, n, 0);
  Status status;
  planned.is_over = true;
  {
    const ReleasedGil released;
    status =
        StagedReader(*self.table)
            .gather_batch(batch, selection.plan, outputs.data.data(), nullptr, std::numeric_limits<double>::infinity());
  }
  if (status.code() == Code::kInterrupted) return nb::none();
  raise_if_error(status);
  const npy_intp dims[1] = {static_cast<npy_intp>(n)};
  void* keys = nullptr;
  void* probabilities = nullptr;
  nb::object key_array = new_array(NPY_INT64, 1, dims, &keys);
  nb::object probability_array = new_array(NPY_DOUBLE, 1, dims, &probabilities);
  std::copy(batch.keys.begin(), batch.keys.end(), static_cast<int64_t*>(keys));
  std::copy(batch.probabilities.begin(), batch.probabilities.end(), static_cast<double*>(probabilities));
  return nb::make_tuple(outputs.arrays(selection, n), key_array, probability_array, batch.num_live_items);
}

uint64_t spill_all_pages(const CoreTable& self) {
  uint64_t spilled = 0;
  without_gil([&] { return relive::spill_all_pages(*self.table, &spilled); });
  return spilled;
}

}  // namespace

nb::dict tier_stats(const CoreTable& self) {
  TierStats s;
  without_gil([&] { return relive::tier_stats(*self.table, &s); });
  nb::dict d;
  d["ram_bytes"] = s.ram_bytes;
  d["staging_bytes"] = s.staging_bytes;
  d["staged_bytes"] = s.staged_bytes;
  d["page_bytes"] = s.page_bytes;
  d["pages_in_ram"] = s.pages_in_ram;
  d["pages_on_disk"] = s.pages_on_disk;
  d["free_frames"] = s.free_frames;
  d["late_batches"] = s.late_batches;
  d["on_demand_batches"] = s.on_demand_batches;
  d["replaced_items"] = s.replaced_items;
  d["frame_waits"] = s.frame_waits;
  d["bytes_read"] = s.bytes_read;
  d["bytes_written"] = s.bytes_written;
  d["reads"] = s.reads;
  d["writes"] = s.writes;
  d["disk_errors"] = s.disk_errors;
  d["rows_from_ram"] = s.rows_from_ram;
  d["units_wanted"] = s.units_wanted;
  d["staging_hits"] = s.staging_hits;
  d["units_read"] = s.units_read;
  d["planned_evicted"] = s.planned_evicted;
  d["direct_io"] = s.direct_io;
  return d;
}

void bind_tier(nb::module_& module, nb::class_<CoreTable>& table) {
  nb::class_<CorePlannedBatch>(module, "PlannedBatch")
      .def("cancel", [](CorePlannedBatch& self) { self.batch->cancel(); })
      .def("commit", &CorePlannedBatch::commit, nb::arg("was_late") = false)
      .def("give_back", &CorePlannedBatch::give_back)
      .def_prop_ro("is_held", &CorePlannedBatch::is_held);
  table.def_prop_ro("is_tiered", [](const CoreTable& self) { return self.table->is_tiered(); })
      .def("plan_batch", &plan_batch, nb::arg("request"), nb::arg("timeout_s"), nb::rv_policy::take_ownership,
           nb::keep_alive<0, 2>())
      .def("gather_planned", &gather_planned, nb::arg("planned"), nb::arg("selection"))
      .def("spill_all_pages", &spill_all_pages)
      .def("fail_disk", [](const CoreTable& self, int read_error, int write_error) {
        relive::fail_disk(*self.table, read_error, write_error);
      });
}

}  // namespace relive::bindings
