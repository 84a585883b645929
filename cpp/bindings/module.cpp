// relive._core: the module, numpy's API, and the hooks through which the core asks Python two questions.
#define RELIVE_IMPORTS_NUMPY
#include <atomic>

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

std::atomic<bool> is_exiting{false};
uint64_t main_thread = 0;

// One block of the batch pool as uint8[num_bytes], for batches that come from elsewhere; it returns as others do.
nb::object new_buffer(size_t num_bytes) {
  BatchBuffer buffer(num_bytes);
  const npy_intp dims[1] = {static_cast<npy_intp>(num_bytes)};
  static PyArray_Descr* const bytes = PyArray_DescrFromType(NPY_UBYTE);
  return buffer.array(bytes, 1, dims, buffer.take(num_bytes));
}

int import_numpy() {
  import_array1(-1);
  return 0;
}

}  // namespace

ReleasedGil::~ReleasedGil() {
  while (is_exiting.load(std::memory_order_relaxed) && thread_id() != main_thread) {
    std::atomic<uint32_t> never{0};
    futex_wait(&never, 0, 1.0);
  }
  PyEval_RestoreThread(state_);
}

void watch_for_exit() {
  main_thread = thread_id();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { is_exiting.store(true); }));
}

}  // namespace relive::bindings

NB_MODULE(_core, module) {
  if (relive::bindings::import_numpy() < 0) throw nanobind::python_error();
  nanobind::set_leak_warnings(false);  // arrays may outlive the interpreter's last look
  relive::interrupt_hook = &relive::bindings::is_interrupted;
  relive::only_thread_hook = &relive::bindings::is_only_thread;
  relive::bindings::watch_for_exit();
  relive::bindings::bind_table(module);
  relive::bindings::bind_writer(module);
  relive::bindings::bind_device(module);
  relive::bindings::bind_row_block(module);
  nanobind::class_<relive::bindings::BatchMemory>(module, "BatchMemory")
      .def(nanobind::init<>())
      .def("close", &relive::bindings::BatchMemory::close);
  module.def("kept_batch_bytes", &relive::bindings::kept_batch_bytes);
  module.def("new_buffer", &relive::bindings::new_buffer, nanobind::arg("num_bytes"));
}
