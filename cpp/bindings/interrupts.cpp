// Waits of the main thread in a library that hears no signals. Another thread learns that Ctrl-C came, and ends the wait.
//
// Python's handler of SIGINT leaves a note, at which the main thread looks between two steps of Python. So a wait in C
// that does not return hears nothing. During such a wait, heard() has a handler of its own run before Python's, which
// sets a flag. A thread that can end the wait looks at interrupted(). heard() then raises the error of Python's handler.
//
// Owns:    the process's handler of SIGINT, during a wait.
// Locking: only the main thread calls heard(). The handler runs on any thread; it reads `next_handler`, which changes
//          only while the handler is not installed.
// Cost:    three system calls a wait.
#include <atomic>
#include <csignal>

#include "module.hpp"

namespace relive::bindings {
namespace {

std::atomic<bool> was_interrupted{false};
const struct sigaction kNone = {};
struct sigaction next_handler = {};  // Python's
struct sigaction ours = {};          // calls note_interrupt, as Python's is called otherwise
int num_hearing = 0;                 // waits that are under way: a handler of Python may begin another one

void note_interrupt(int number, siginfo_t* about, void* context) {
  was_interrupted.store(true, std::memory_order_relaxed);
  if ((next_handler.sa_flags & SA_SIGINFO) != 0)
    next_handler.sa_sigaction(number, about, context);
  else
    next_handler.sa_handler(number);
}

// Installs the handler, unless the process ignores SIGINT or ends at it.
class Hearing final {
 public:
  Hearing() {
    if (num_hearing++ > 0) return;
    if (next_handler.sa_handler == nullptr) learn_next();
    is_installed_ = next_handler.sa_handler != nullptr && install();
  }
  ~Hearing() {
    struct sigaction now;  // a handler that ran in this wait may have set another one
    if (is_installed_ && ::sigaction(SIGINT, nullptr, &now) == 0 && now.sa_sigaction == &note_interrupt)
      ::sigaction(SIGINT, &next_handler, nullptr);
    was_interrupted.store(false, std::memory_order_relaxed);
    --num_hearing;
  }
  Hearing(const Hearing&) = delete;
  Hearing& operator=(const Hearing&) = delete;

 private:
  // The handler of now is the one to call next, if it is a function.
  static void learn_next() {
    struct sigaction now;
    const bool is_function =
        ::sigaction(SIGINT, nullptr, &now) == 0 && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN;
    next_handler = is_function ? now : kNone;
    ours = next_handler;
    ours.sa_flags |= SA_SIGINFO;
    ours.sa_sigaction = &note_interrupt;
  }
  static bool install() {
    struct sigaction before;
    if (::sigaction(SIGINT, &ours, &before) != 0) return false;
    if (before.sa_handler == next_handler.sa_handler) return true;  // a union with sa_sigaction
    ::sigaction(SIGINT, &before, nullptr);                          // the program has another handler since
    learn_next();
    return next_handler.sa_handler != nullptr && ::sigaction(SIGINT, &ours, nullptr) == 0;
  }

  bool is_installed_ = false;
};

void run_handlers() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Calls wait(), or wait(argument), in the main thread. Raises the error of a handler if one ran.
nb::object heard(nb::handle wait, nb::handle argument) {
  const Hearing hearing;
  do {  // a signal that came before this call is noted already
    was_interrupted.store(false, std::memory_order_relaxed);
    run_handlers();
  } while (was_interrupted.load(std::memory_order_relaxed));
  // An argument that is null ends the list of arguments.
  const nb::object result = nb::steal(PyObject_CallFunctionObjArgs(wait.ptr(), argument.ptr(), nullptr));
  if (result.is_valid()) {
    if (was_interrupted.load(std::memory_order_relaxed)) run_handlers();
    return result;
  }
  nb::python_error failed;
  if (was_interrupted.load(std::memory_order_relaxed)) run_handlers();
  throw failed;
}

}  // namespace

void bind_interrupts(nb::module_& module) {
  module.def("heard", [](nb::handle wait) { return heard(wait, nb::handle()); }, nb::arg("wait"));
  module.def("heard", &heard, nb::arg("wait"), nb::arg("argument"));
  module.def("interrupted", [] { return was_interrupted.load(std::memory_order_relaxed); });
}

}  // namespace relive::bindings
