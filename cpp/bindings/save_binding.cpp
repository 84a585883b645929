// CoreSaver and CoreLoader: the state and the pages of a table as arrays of bytes, and a table from them.
#include <cstring>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "module.hpp"
#include "relive/save/loader.hpp"
#include "relive/save/saver.hpp"
#include "relive/words/crc32c.hpp"

namespace relive::bindings {
namespace {

constexpr npy_intp kFields = sizeof(SavedImage) / sizeof(uint64_t);
static_assert(kFields == 6, "page, ref, ticket, offset, num_bytes, num_cells");

// uint64[images, 6].
nb::object image_array(const std::vector<SavedImage>& images) {
  const npy_intp dims[2] = {static_cast<npy_intp>(images.size()), kFields};
  void* data = nullptr;
  nb::object array = new_array(NPY_UINT64, 2, dims, &data);
  if (!images.empty()) std::memcpy(data, images.data(), images.size() * sizeof(SavedImage));
  return array;
}

std::vector<SavedImage> images_of(nb::handle given) {
  nb::object array = as_contiguous(given, NPY_UINT64);
  auto* raw = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (PyArray_SIZE(raw) % kFields != 0) throw nb::value_error("images are uint64[n, 6]");
  std::vector<SavedImage> images(static_cast<size_t>(PyArray_SIZE(raw) / kFields));
  if (!images.empty()) std::memcpy(images.data(), PyArray_DATA(raw), images.size() * sizeof(SavedImage));
  return images;
}

// Memory of a C-contiguous array of bytes.
struct Bytes {
  std::byte* data;
  size_t size;
};

Bytes bytes_of(nb::handle value, bool is_written) {
  auto* raw = reinterpret_cast<PyArrayObject*>(value.ptr());
  if (!PyArray_Check(value.ptr()) || !PyArray_IS_C_CONTIGUOUS(raw) || (is_written && !PyArray_ISWRITEABLE(raw)))
    throw nb::type_error("a C-contiguous array is expected");
  return {static_cast<std::byte*>(PyArray_DATA(raw)), static_cast<size_t>(PyArray_NBYTES(raw))};
}

// One save. The table stays open for the core as long as this object lives.
class CoreSaver final {
 public:
  explicit CoreSaver(const CoreTable& of) : table_(of.table), saver_(*table_) {}

  void begin(nb::handle known) {
    const std::vector<SavedImage> images = images_of(known);
    without_gil([&] { return saver_.begin(images.data(), images.size()); });
  }
  nb::object fill(nb::handle buffer, size_t at) {
    const Bytes to = bytes_of(buffer, true);
    if (at > to.size) throw nb::value_error("a place behind the buffer");
    std::vector<SavedImage> images;
    without_gil([&] { return saver_.fill(to.data + at, to.size - at, &images); });
    for (SavedImage& image : images) image.offset += at;
    return image_array(images);
  }
  double cut(double timeout_s) {
    without_gil([&] { return saver_.cut(Deadline::after(timeout_s)); });
    return saver_.cut_s();
  }
  void end() {
    const ReleasedGil released;
    saver_.end();
  }
  Saver& saver() { return saver_; }
  const Table& table() const { return *table_; }

 private:
  std::shared_ptr<Table> table_;
  Saver saver_;
};

// (name, index, uint8[bytes]) of each section of a cut. The arrays are views of the saver's memory.
nb::list sections(nb::object self) {
  Saver& saver = nb::cast<CoreSaver&>(self).saver();
  nb::list found;
  const auto add = [&](const std::string& name, uint32_t index, const void* bytes, size_t count) {
    const npy_intp dims[1] = {static_cast<npy_intp>(count)};
    PyObject* array = PyArray_SimpleNewFromData(1, dims, NPY_UBYTE, const_cast<void*>(bytes));
    if (array == nullptr) throw nb::python_error();
    PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), nb::object(self).release().ptr());
    found.append(nb::make_tuple(name, index, nb::steal(array)));
  };
  for (const SavedArea& area : saver.areas()) add(area.name, area.index, area.at, area.num_bytes());
  add("numbers", 0, &saver.numbers(), sizeof(SavedNumbers));
  return found;
}

// A table that is being loaded. The sections are kept until finish().
class CoreLoader final {
 public:
  CoreLoader(const nb::dict& from, nb::object path, const nb::dict& shape, const nb::list& given, uint64_t entropy) {
    const TableConfig config = table_config(from);
    const std::string name = path.is_none() ? std::string() : nb::cast<std::string>(path);
    state_.shape.num_pages = nb::cast<uint64_t>(shape["num_pages"]);
    state_.shape.page_shift = nb::cast<uint32_t>(shape["page_shift"]);
    state_.shape.slot_bits = nb::cast<uint32_t>(shape["slot_bits"]);
    state_.shape.max_lanes = nb::cast<uint32_t>(shape["max_lanes"]);
    state_.shape.shard = nb::cast<uint64_t>(shape["shard"]);
    state_.entropy = entropy;
    for (nb::handle row : given) take_section(nb::borrow<nb::tuple>(row));
    without_gil([&] { return Loader::make(config, name, state_, &loader_); });
  }
  bool keeps_keys() const { return loader_->keeps_keys(); }
  bool wants(uint64_t page) const { return loader_->wants(page); }
  void put(nb::handle buffer, nb::handle given) {
    const Bytes from = bytes_of(buffer, false);
    const std::vector<SavedImage> images = images_of(given);
    without_gil([&]() -> Status {
      for (const SavedImage& image : images) {
        if (image.offset > from.size || image.num_bytes > from.size - image.offset || !loader_->wants(image.page))
          return Status(Code::kDamagedSave).with_text("what", "the place of an image");
        RELIVE_RETURN_IF_ERROR(loader_->put(image.page, from.data + image.offset, image.num_bytes));
      }
      return {};
    });
  }
  CoreTable* finish() {
    std::unique_ptr<Table> table;
    without_gil([&] { return loader_->finish(&table); });
    auto made = std::make_unique<CoreTable>(std::shared_ptr<Table>(std::move(table)));
    close_at_exit(made->table);
    return made.release();
  }

 private:
  void take_section(const nb::tuple& row) {
    const Bytes bytes = bytes_of(row[2], false);
    const auto name = nb::cast<std::string>(row[0]);
    if (reinterpret_cast<uintptr_t>(bytes.data) % 16 != 0) throw nb::value_error("a section must be aligned");
    kept_.push_back(nb::borrow(row[2]));
    if (name == "numbers") {
      if (bytes.size != sizeof(SavedNumbers))
        raise_if_error(Status(Code::kDamagedSave).with_text("what", "the length of section 'numbers'"));
      std::memcpy(&state_.numbers, bytes.data, sizeof(SavedNumbers));
      return;
    }
    state_.areas.push_back({name, nb::cast<uint32_t>(row[1]), bytes.data, bytes.size});
  }

  SavedState state_{};
  std::vector<nb::object> kept_;
  std::unique_ptr<Loader> loader_;
};

uint32_t sum_of(nb::handle bytes, uint32_t start) {
  Py_buffer view;
  if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  uint32_t sum = 0;
  {
    const ReleasedGil released;
    sum = crc32c(view.buf, static_cast<size_t>(view.len), start);
  }
  PyBuffer_Release(&view);
  return sum;
}

}  // namespace

void bind_save(nb::module_& module) {
  nb::class_<CoreSaver>(module, "CoreSaver")
      .def(nb::init<const CoreTable&>(), nb::arg("table"))
      .def("begin", &CoreSaver::begin, nb::arg("known"))
      .def("fill", &CoreSaver::fill, nb::arg("buffer"), nb::arg("at"))
      .def("next_round", [](CoreSaver& self) { self.saver().next_round(); })
      .def("cut", &CoreSaver::cut, nb::arg("timeout_s"))
      .def("sections", &sections)
      .def("pages", [](CoreSaver& self) { return image_array(self.saver().pages()); })
      .def("end", &CoreSaver::end)
      .def_prop_ro("bytes_missing",
                   [](CoreSaver& self) {
                     uint64_t num_bytes = 0;
                     without_gil([&] { return self.saver().bytes_missing(&num_bytes); });
                     return num_bytes;
                   })
      .def_prop_ro("most_image_bytes", [](CoreSaver& self) { return self.saver().form().most_image_bytes(); })
      .def_prop_ro("num_steps", [](CoreSaver& self) { return self.saver().num_steps(); });
  nb::class_<CoreLoader>(module, "CoreLoader")
      .def(nb::init<const nb::dict&, nb::object, const nb::dict&, const nb::list&, uint64_t>(), nb::arg("config"),
           nb::arg("path").none(), nb::arg("shape"), nb::arg("sections"), nb::arg("entropy"))
      .def("wants", &CoreLoader::wants, nb::arg("page"))
      .def("put", &CoreLoader::put, nb::arg("buffer"), nb::arg("images"))
      .def("finish", &CoreLoader::finish)
      .def_prop_ro("keeps_keys", &CoreLoader::keeps_keys);
  module.def("crc32c", &sum_of, nb::arg("bytes"), nb::arg("start") = 0);
}

}  // namespace relive::bindings
