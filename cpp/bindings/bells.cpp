// Bells: events in memory that processes share. One process rings, another waits, spinning at first (sync.hpp:
// EventWords).
#include "module.hpp"
#include "relive/words/sync.hpp"

namespace relive::bindings {
namespace {

// The two words of a bell, uint32[2], writable and aligned. The caller keeps the memory mapped during the call.
EventWords* words_of(nb::handle value) {
  auto* const array = reinterpret_cast<PyArrayObject*>(value.ptr());
  if (!PyArray_Check(value.ptr()) || PyArray_TYPE(array) != NPY_UINT32 || PyArray_SIZE(array) != 2 ||
      !PyArray_ISCARRAY(array)) {
    PyErr_SetString(PyExc_ValueError, "a bell is a writable, contiguous numpy array uint32[2]");
    throw nb::python_error();
  }
  return static_cast<EventWords*>(PyArray_DATA(array));
}

void ring(const nb::object& bell) {
  EventWords* const words = words_of(bell);
  notify(words);
}

bool await_rings(const nb::object& bell, uint32_t count, double spin_s, double timeout_s) {
  EventWords* const words = words_of(bell);
  if (await_count(words, count, 0.0, Deadline::after(0.0))) return true;
  const ReleasedGil released;
  return await_count(words, count, spin_s, Deadline::after(timeout_s));
}

}  // namespace

void bind_bells(nb::module_& module) {
  module.def("ring", &ring, nb::arg("bell"));
  module.def("await_rings", &await_rings, nb::arg("bell"), nb::arg("count"), nb::arg("spin_s"), nb::arg("timeout_s"));
}

}  // namespace relive::bindings
