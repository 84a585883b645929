// The dict of create_table into the core's TableConfig. The Python side has checked its values; types are checked here.
#include <algorithm>
#include <cstring>

#include <nanobind/stl/string.h>

#include "module.hpp"

namespace relive::bindings {
namespace {

template <class T>
T get(const nb::dict& from, const char* name) {
  return nb::cast<T>(from[name]);
}

ColumnConfig column_config(nb::handle row) {
  const auto entry = nb::cast<nb::tuple>(row);
  ColumnConfig column;
  column.name = nb::cast<std::string>(entry[0]);
  column.dtype = nb::cast<std::string>(entry[1]);
  for (nb::handle dim : nb::cast<nb::tuple>(entry[2])) column.shape.push_back(nb::cast<int64_t>(dim));
  const auto kind = nb::cast<std::string>(entry[3]);
  column.kind = kind == "state" ? ColumnKind::kState : kind == "start" ? ColumnKind::kStart : ColumnKind::kStep;
  PyArray_Descr* descr = descr_of(column.dtype);
  column.item_bytes = static_cast<uint64_t>(PyDataType_ELSIZE(descr));
  Py_DECREF(descr);
  return column;
}

IndexConfig index_config(const nb::dict& from, const std::vector<ColumnConfig>& columns) {
  IndexConfig index;
  std::memset(&index, 0, sizeof index);
  const auto name = get<std::string>(from, "name");
  std::memcpy(index.name, name.data(), std::min(name.size(), sizeof index.name - 1));
  index.n_step = get<uint32_t>(from, "n_step");
  index.gamma = get<double>(from, "gamma");
  index.stack_pad = get<std::string>(from, "stack_pad") == "zeros" ? StackPad::kZeros : StackPad::kRepeat;
  const auto stack = get<nb::dict>(from, "stack");
  for (size_t c = 0; c < columns.size(); ++c)
    index.stack[c] = stack.contains(columns[c].name.c_str()) ? nb::cast<uint32_t>(stack[columns[c].name.c_str()]) : 1;
  index.sampling = get<std::string>(from, "sampler") == "prioritized" ? Sampling::kPrioritized : Sampling::kUniform;
  index.priority_exponent = get<double>(from, "priority_exponent");
  const auto initial = get<nb::tuple>(from, "initial");
  const auto kind = nb::cast<std::string>(initial[0]);
  index.initial = kind == "given" ? Initial::kGiven : kind == "number" ? Initial::kNumber : Initial::kMax;
  index.initial_number = nb::cast<double>(initial[1]);
  const auto min_size = get<int64_t>(from, "min_size");
  if (get<std::string>(from, "limiter") == "samples_per_insert") {
    nb::object tolerance = nb::borrow(from["tolerance"]);
    index.limiter = make_samples_per_insert(get<double>(from, "samples_per_insert"), min_size,
                                            tolerance.is_none() ? -1.0 : nb::cast<double>(tolerance));
  } else {
    index.limiter = make_min_size(min_size);
  }
  index.max_times_sampled = get<uint32_t>(from, "max_times_sampled");
  return index;
}

}  // namespace

TableConfig table_config(const nb::dict& from) {
  TableConfig config;
  for (nb::handle row : nb::list(from["columns"])) config.columns.push_back(column_config(row));
  for (nb::handle row : nb::list(from["indexes"]))
    config.indexes.push_back(index_config(nb::cast<nb::dict>(row), config.columns));
  config.capacity = get<uint64_t>(from, "capacity");
  config.max_lanes = get<uint32_t>(from, "max_lanes");
  config.max_participants = get<uint32_t>(from, "max_participants");
  config.seed = get<uint64_t>(from, "seed");
  config.shard = get<uint64_t>(from, "shard");
  const auto metadata = get<nb::bytes>(from, "metadata");
  config.metadata.assign(metadata.c_str(), metadata.size());
  if (from.contains("tier")) {
    const auto tier = get<nb::dict>(from, "tier");
    config.tier.directory = get<std::string>(tier, "directory");
    config.tier.ram_bytes = get<uint64_t>(tier, "ram_bytes");
    config.tier.staging_fraction = get<double>(tier, "staging_fraction");
    config.tier.min_column_bytes = get<uint32_t>(tier, "min_column_bytes");
    config.tier.num_io_threads = get<uint32_t>(tier, "io_threads");
  }
  return config;
}

}  // namespace relive::bindings
