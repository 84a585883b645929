// A draw in flight, which Python hands out or gives back.
#include <nanobind/stl/optional.h>

#include "module.hpp"
#include "relive/table/claims.hpp"
#include "relive/table/reading.hpp"

namespace relive::bindings {

void CoreHold::prepare(DrawRequest* request) {
  give_back();
  uses_.clear();
  positions_ = {};
  request->claims = gives_back_uses_ ? &uses_ : nullptr;
  request->positions = &positions_;
  request->hold = true;
}

void CoreHold::begin(const CoreTable& of, const DrawRequest& request) {
  table_ = of.table;
  epoch_ = fork_epoch();
  index_ = request.index;
  num_items_ = static_cast<int64_t>(request.num_items);
  has_rows_ = request.plan != nullptr;
}

void CoreHold::commit(std::optional<bool> is_read, int64_t num_lost) {
  if (table_ == nullptr) return;
  if (epoch_ != fork_epoch()) return end();
  const int64_t num_given = num_items_ - num_lost;
  without_gil([&]() -> Status {
    RELIVE_RETURN_IF_ERROR(return_held(*table_, index_, num_lost));
    return gives_back_uses_ ? commit_batch(*table_, index_, num_given, uses_, is_read.value_or(has_rows_))
                            : commit_held(*table_, index_, num_given);
  });
  end();
}

void CoreHold::give_back() {
  if (table_ == nullptr) return;
  const ReleasedGil released;
  if (epoch_ == fork_epoch())  // a table that is closed has given back every draw
    (void)(gives_back_uses_ ? give_back_batch(*table_, index_, num_items_, uses_, positions_)
                            : return_held(*table_, index_, num_items_, positions_));
  table_.reset();
}

void CoreHold::end() {
  const ReleasedGil released;  // the last owner closes the table, which may wait for its lock
  table_.reset();
}

void bind_hold(nb::module_& module) {
  nb::class_<CoreHold>(module, "Hold")
      .def(nb::init<bool>(), nb::arg("gives_back_uses") = true)
      .def("commit", &CoreHold::commit, nb::arg("is_read").none() = nb::none(), nb::arg("num_lost") = 0)
      .def("give_back", &CoreHold::give_back)
      .def_prop_ro("is_held", &CoreHold::is_held);
}

}  // namespace relive::bindings
