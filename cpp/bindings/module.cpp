// relive._core: the module, numpy's API, and the hooks through which the core asks Python two questions.
#define RELIVE_IMPORTS_NUMPY
#include "module.hpp"

namespace relive::bindings {
namespace {

// Whether a signal handler raised while a call waited. The error stays set for the call to raise.
bool is_interrupted() {
  nb::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() != 0;
}

// Whether this is the only Python thread: then nobody in the process can end the wait it is about to begin.
bool is_only_thread() {
  nb::gil_scoped_acquire acquire;
  return nb::cast<int>(nb::module_::import_("threading").attr("active_count")()) == 1;
}

int import_numpy() {
  import_array1(-1);
  return 0;
}

}  // namespace
}  // namespace relive::bindings

NB_MODULE(_core, module) {
  if (relive::bindings::import_numpy() < 0) throw nanobind::python_error();
  nanobind::set_leak_warnings(false);  // arrays may outlive the interpreter's last look
  relive::interrupt_hook = &relive::bindings::is_interrupted;
  relive::only_thread_hook = &relive::bindings::is_only_thread;
  relive::bindings::bind_table(module);
  relive::bindings::bind_writer(module);
}
