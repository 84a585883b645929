// Conditions of draws: the core reads a program of relive/config/where.py once, and runs it for every draw.
#include <nanobind/stl/string.h>

#include "module.hpp"

namespace relive::bindings {
namespace {

CoreWhere* make_where(const CoreTable& self, uint32_t index, const std::string& text, const nb::list& operations) {
  const std::vector<WrittenOperation> written = written_operations(operations);
  const OpenRegion open(self);
  auto made = std::make_unique<CoreWhere>();
  raise_if_error(relive::make_where(*open, index, written, text, &made->where));
  return made.release();
}

}  // namespace

std::vector<WrittenOperation> written_operations(const nb::list& operations) {
  std::vector<WrittenOperation> written;
  for (nb::handle one : operations)
    written.push_back({nb::cast<std::string>(one[0]), nb::cast<std::string>(one[1]), nb::cast<double>(one[2]),
                       nb::cast<int64_t>(one[3])});
  return written;
}

const Where* where_of(const CoreWhere* where, uint32_t index) {
  if (where == nullptr) return nullptr;
  if (where->where.index != index) {
    PyErr_Format(PyExc_ValueError, "where: made for index %u, not for %u", where->where.index, index);
    throw nb::python_error();
  }
  return &where->where;
}

void bind_where(nb::module_& module, nb::class_<CoreTable>& table) {
  nb::class_<CoreWhere>(module, "CoreWhere");
  table.def("where", &make_where, nb::arg("index"), nb::arg("text"), nb::arg("operations"),
            nb::rv_policy::take_ownership);
}

}  // namespace relive::bindings
