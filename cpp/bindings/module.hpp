// The classes behind relive._core, shared between the binding files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "relive/table.hpp"
#include "relive/writer.hpp"

namespace relive::bindings {

// What a plan's outputs look like to numpy.
struct CorePlan {
  GatherPlan plan;
  std::vector<PyArray_Descr*> descrs;         // owned
  std::vector<std::vector<npy_intp>> dims;    // [B, ...], B filled in a call
  ~CorePlan() {
    for (PyArray_Descr* descr : descrs) Py_DECREF(descr);
  }
};

// A table handle shared by its Python object, its writers and its plans.
struct CoreTable {
  std::shared_ptr<Table> table;
};

void bind_table(nb::module_& module);
void bind_writer(nb::module_& module);
nb::object open_writer(const CoreTable& table, uint32_t num_lanes, bool single, nb::object normalise);

}  // namespace relive::bindings
