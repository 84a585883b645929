// relive._core: the module and numpy's API.
#define RELIVE_IMPORTS_NUMPY
#include "module.hpp"

namespace relive::bindings {
namespace {

// One block of the batch pool as uint8[num_bytes], for batches that come from another process. It returns to the pool.
nb::object new_buffer(size_t num_bytes) {
  BatchBuffer buffer(BatchBlock(size_class(num_bytes)));
  const npy_intp dims[1] = {static_cast<npy_intp>(num_bytes)};
  static PyArray_Descr* const bytes = PyArray_DescrFromType(NPY_UBYTE);
  return buffer.array(bytes, 1, dims, buffer.take(num_bytes));
}

int import_numpy() {
  import_array1(-1);
  return 0;
}

}  // namespace

}  // namespace relive::bindings

NB_MODULE(_core, module) {
  if (relive::bindings::import_numpy() < 0) throw nanobind::python_error();
  nanobind::set_leak_warnings(false);  // arrays may outlive the interpreter's last check
  relive::interrupt_hook = &relive::bindings::hear_signals;
  relive::only_thread_hook = &relive::bindings::is_only_thread;
  relive::bindings::bind_exit(module);
  relive::bindings::bind_table(module);
  relive::bindings::bind_writer(module);
  relive::bindings::bind_region(module);
  relive::bindings::bind_row_block(module);
  relive::bindings::bind_mixing(module);
  relive::bindings::bind_bells(module);
  relive::bindings::bind_turn(module);
  relive::bindings::bind_hold(module);
  relive::bindings::bind_interrupts(module);
  relive::bindings::bind_region_format(module);
  relive::bindings::bind_save(module);
  nanobind::class_<relive::bindings::BatchMemory>(module, "BatchMemory")
      .def(nanobind::init<>())
      .def("close", &relive::bindings::BatchMemory::close);
  module.def("kept_batch_bytes", &relive::bindings::kept_batch_bytes);
  module.def("free_batch_memory", &relive::bindings::free_batch_memory);
  module.def("set_clock_ahead", &relive::set_clock_ahead, nanobind::arg("seconds"));  // for tests of max_wait_s
  module.def("new_buffer", &relive::bindings::new_buffer, nanobind::arg("num_bytes"));
}
