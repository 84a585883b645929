// The hooks by which a waiting core call asks Python, and the end of the interpreter, when no call may ask any more.
//
// If a thread asks a finalizing interpreter for the GIL, the interpreter unwinds the thread through C++ frames, which
// aborts the process. So after end_of_process() only the thread that called it takes the GIL here. The waits of other
// threads end, and those threads never return. A thread that runs Python below a frame of the core (PythonInside) may
// lose the GIL there and ask for it again: end_of_process() waits for such threads, and later ones never begin.
#include <atomic>
#include <utility>
#include <vector>

#include "module.hpp"

namespace relive::bindings {
namespace {

std::atomic<bool> is_exiting{false};
std::atomic<uint64_t> main_thread{0};  // signal handlers run on this thread only; 0: not known
std::atomic<int> num_coming_back{0};   // threads that may take the GIL and do not have it yet
std::atomic<int> num_inside{0};        // threads that run Python below a frame of the core

// Handles that the process may still have open at its end. Guarded by the GIL.
std::vector<std::weak_ptr<Table>>& handles() {
  static auto& made = *new std::vector<std::weak_ptr<Table>>;
  return made;
}

// A thread's way back to the GIL. It is refused when the process ends; end_of_process() waits for threads that were let
// through before.
class WayBack final {
 public:
  WayBack() {
    if (thread_id() == main_thread.load(std::memory_order_relaxed)) return;
    num_coming_back.fetch_add(1);
    is_counted_ = true;
    is_refused_ = is_exiting.load();
    if (is_refused_) arrived();
  }
  ~WayBack() { arrived(); }
  WayBack(const WayBack&) = delete;
  WayBack& operator=(const WayBack&) = delete;
  bool is_refused() const { return is_refused_; }

 private:
  void arrived() {
    if (is_counted_) num_coming_back.fetch_sub(1);
    is_counted_ = false;
  }

  bool is_counted_ = false;
  bool is_refused_ = false;
};

void sleep_for_ever() {
  for (;;) {
    std::atomic<uint32_t> never{0};
    futex_wait(&never, 0, 1.0);
  }
}

// Closes every open table. relive.core.ending calls it at the end of the process.
void end_of_process() {
  main_thread.store(thread_id());
  is_exiting.store(true);
  std::vector<std::shared_ptr<Table>> open;
  for (const std::weak_ptr<Table>& handle : handles())
    if (std::shared_ptr<Table> table = handle.lock()) open.push_back(std::move(table));
  const ReleasedGil released;
  for (const std::shared_ptr<Table>& table : open) table->close_at_last();
  const Deadline patience = Deadline::after(kLastPatience_s);
  while ((num_coming_back.load() > 0 || num_inside.load() > 0) && !patience.passed()) {
    std::atomic<uint32_t> nobody{0};
    futex_wait(&nobody, 0, 0.001);
  }
}

// is_only_thread() left a Python error set. The next hear_signals() on this thread, on any thread, returns true for it.
thread_local bool raised_in_hook = false;

bool is_this_the_main_thread() {
  const nb::module_ threading = nb::module_::import_("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

}  // namespace

ReleasedGil::~ReleasedGil() {
  const WayBack way;
  if (way.is_refused()) sleep_for_ever();
  PyEval_RestoreThread(state_);
}

PythonInside::PythonInside() : is_counted_(thread_id() != main_thread.load(std::memory_order_relaxed)) {
  if (!is_counted_) return;
  num_inside.fetch_add(1);
  if (!is_exiting.load()) return;
  num_inside.fetch_sub(1);
  (void)PyEval_SaveThread();
  sleep_for_ever();
}

PythonInside::~PythonInside() {
  if (is_counted_) num_inside.fetch_sub(1);
}

// Whether a signal handler raised an error during a wait. The error stays set, and the call raises it.
bool hear_signals() {
  if (std::exchange(raised_in_hook, false)) return true;
  const uint64_t main = main_thread.load(std::memory_order_relaxed);
  if (main != 0 && thread_id() != main) return is_exiting.load();  // no signal handler runs on this thread
  const WayBack way;
  if (way.is_refused()) return true;
  const nb::gil_scoped_acquire acquire;
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
}

// Whether this is the only Python thread, so that no thread of the process can end the wait that begins. Counting
// threads runs Python, and perhaps a signal handler. If the handler raises, its error stays set, as in hear_signals():
// thrown from here, it would end a call that is half done and could not report the stored rows.
bool is_only_thread() {
  const WayBack way;
  if (way.is_refused()) return false;
  const nb::gil_scoped_acquire acquire;
  try {
    return nb::cast<int>(nb::module_::import_("relive.core.ending").attr("num_threads")()) == 1;
  } catch (nb::python_error& raised) {  // from a handler, or thrown into this thread, which may not be the main one
    raised.restore();
    raised_in_hook = true;
    return false;
  }
}

void close_at_exit(const std::shared_ptr<Table>& table) {
  std::erase_if(handles(), [](const std::weak_ptr<Table>& handle) { return handle.expired(); });
  handles().push_back(table);
}

void bind_exit(nb::module_& module) {
  if (is_this_the_main_thread()) main_thread.store(thread_id());
  module.def("end_of_process", &end_of_process);
  const nb::object in_child = nb::cpp_function([] {
    main_thread.store(thread_id());
    num_coming_back.store(0);
    num_inside.store(0);
  });
  nb::module_ os = nb::module_::import_("os");
  if (nb::hasattr(os, "register_at_fork")) os.attr("register_at_fork")(nb::arg("after_in_child") = in_child);
}

}  // namespace relive::bindings
