// For readers of the region outside of the core: a region that stays mapped during a call, the order of a batch's rows,
// and the core's own descent for comparison.
#include <optional>

#include <nanobind/stl/string.h>

#include "module.hpp"
#include "relive/index/leaves.hpp"
#include "relive/read/draw.hpp"

namespace relive::bindings {
namespace {

// One call of a reader outside of the core. It is counted as a call of the table: close() waits for it, and the region
// stays mapped until then.
class PinnedRegion final {
 public:
  explicit PinnedRegion(const CoreTable& self) : table_(self.table) {}
  PinnedRegion(const PinnedRegion&) = delete;
  PinnedRegion& operator=(const PinnedRegion&) = delete;

  void enter() {
    if (inside_) return;
    inside_.emplace(*table_, false);
    if (inside_->status().ok()) return;
    const Status refused = inside_->status();
    inside_.reset();
    raise_if_error(refused);
  }
  void leave() { inside_.reset(); }
  uint64_t address() const {
    return inside_ ? reinterpret_cast<uint64_t>(table_->region().base) : 0;  // a fork maps the region elsewhere
  }
  uint64_t frames_committed() const { return inside_ ? table_->region().header->frames_committed.load() : 0; }
  uint64_t cells_committed() const {
    return inside_ && table_->region().cells ? table_->region().cells.state->committed.load() : 0;
  }

 private:
  std::shared_ptr<Table> table_;
  std::optional<Entered> inside_;
};

// int32[n]: the row of the batch to which the j-th draw of that call goes.
nb::object permutation(uint64_t seed, uint64_t stream, uint64_t call, size_t n) {
  const npy_intp dims[1] = {static_cast<npy_intp>(n)};
  void* out = nullptr;
  nb::object array = new_array(NPY_INT32, 1, dims, &out);
  shuffle_rows(CounterRng(seed, stream, call, 0), static_cast<uint32_t*>(out), n);
  return array;
}

// int64[n]: the leaves that points in [0, total) fall on, -1 for a point after the last leaf.
nb::object descend(const CoreTable& self, uint32_t index, nb::handle points) {
  const OpenRegion open(self);
  nb::object array = as_contiguous(points, NPY_DOUBLE);
  auto* raw = reinterpret_cast<PyArrayObject*>(array.ptr());
  const npy_intp dims[1] = {PyArray_SIZE(raw)};
  void* out = nullptr;
  nb::object slots = new_array(NPY_INT64, 1, dims, &out);
  static_assert(Leaves::kNoLeaf == static_cast<uint64_t>(int64_t{-1}));
  Leaves(*open, index)
      .draw(static_cast<const double*>(PyArray_DATA(raw)), static_cast<size_t>(dims[0]), static_cast<uint64_t*>(out));
  return slots;
}

}  // namespace

void bind_region(nb::module_& module) {
  nb::class_<PinnedRegion>(module, "PinnedRegion")
      .def(nb::init<const CoreTable&>(), nb::arg("table"))
      .def("__enter__",
           [](nb::object self) {
             nb::cast<PinnedRegion&>(self).enter();
             return self;
           })
      .def(
          "__exit__",
          [](PinnedRegion& self, nb::handle, nb::handle, nb::handle) {
            self.leave();
            return false;
          },
          nb::arg("kind").none(), nb::arg("error").none(), nb::arg("trace").none())
      .def_prop_ro("address", &PinnedRegion::address)
      .def_prop_ro("frames_committed", &PinnedRegion::frames_committed)
      .def_prop_ro("cells_committed", &PinnedRegion::cells_committed);
  module.def("permutation", &permutation, nb::arg("seed"), nb::arg("stream"), nb::arg("call"), nb::arg("num_items"));
  module.def("descend", &descend, nb::arg("table"), nb::arg("index"), nb::arg("points"));
}

}  // namespace relive::bindings
