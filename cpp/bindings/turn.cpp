// Turns: a mutex for Python objects whose calls may take long. A thread waits for its turn with a deadline and hears
// signals. Only its owner ends a turn, so `finally: turn.release()` is right wherever a signal's handler interrupted.
#include "module.hpp"
#include "relive/table/timed_mutex.hpp"

namespace relive::bindings {

void bind_turn(nb::module_& module) {
  nb::class_<TimedMutex>(module, "Turn")
      .def(nb::init<>())
      .def(
          "take",
          [](TimedMutex& self, const char* purpose, double timeout_s) {
            without_gil([&] { return self.take(purpose, Deadline::after(timeout_s)); });
          },
          nb::arg("purpose"), nb::arg("timeout_s"))
      .def("release", &TimedMutex::release);
}

}  // namespace relive::bindings
