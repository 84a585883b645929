#include "arrays.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "module.hpp"

namespace relive::bindings {
namespace {

constexpr size_t kKeptBytes = size_t{1} << 30;  // the most bytes of all free blocks
constexpr size_t kKeptEach = 16;                // the most free blocks of one size
constexpr size_t kHugePage = size_t{2} << 20;

struct Pool {
  std::mutex mutex;
  std::map<size_t, std::vector<void*>> free;
  size_t kept_bytes = 0;
  size_t num_handles = 0;
};

// Ragged draws take memory without the GIL, so a fork may come while another thread has the mutex. A fork waits for it.
Pool& pool() {
  static Pool* const one = [] {
    on_fork([] { pool().mutex.lock(); }, [] { pool().mutex.unlock(); }, [] { pool().mutex.unlock(); });
    return new Pool;  // never freed: it outlives every array, also at interpreter exit
  }();
  return *one;
}

struct Block {
  void* memory;
  size_t num_bytes;
};

void* take_block(size_t num_bytes) {
  Pool& p = pool();
  {
    const std::lock_guard<std::mutex> guard(p.mutex);
    auto found = p.free.find(num_bytes);
    if (found != p.free.end() && !found->second.empty()) {
      void* memory = found->second.back();
      found->second.pop_back();
      p.kept_bytes -= num_bytes;
      return memory;
    }
  }
  const size_t alignment = num_bytes >= kHugePage ? 4096 : 64;
  void* memory = std::aligned_alloc(alignment, (num_bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void give_back(const Block& block) {
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  std::vector<void*>& same = p.free[block.num_bytes];
  if (p.num_handles > 0 && same.size() < kKeptEach && p.kept_bytes + block.num_bytes <= kKeptBytes) {
    same.push_back(block.memory);
    p.kept_bytes += block.num_bytes;
  } else {
    std::free(block.memory);
  }
}

// Frees the blocks that no array uses. The caller has taken the mutex.
size_t free_blocks(Pool& p) {
  for (auto& [num_bytes, blocks] : p.free)
    for (void* memory : blocks) std::free(memory);
  p.free.clear();
  return std::exchange(p.kept_bytes, 0);
}

void give_back_capsule(PyObject* capsule) {
  auto* block = static_cast<Block*>(PyCapsule_GetPointer(capsule, nullptr));
  give_back(*block);
  delete block;
}

}  // namespace

BatchMemory::BatchMemory() {
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  p.num_handles += 1;
}

void BatchMemory::close() {
  if (!open_) return;
  open_ = false;
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  p.num_handles -= 1;
  if (p.num_handles == 0) free_blocks(p);
}

size_t free_batch_memory() {
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  return free_blocks(p);
}

size_t kept_batch_bytes() {
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  return p.kept_bytes;
}

namespace {

// The keys of the stored rows, which are the first ones.
nb::object stored_keys(const nb::handle& keys, int64_t stored) {
  return nb::module_::import_("numpy").attr("ravel")(keys)[nb::slice(nb::none(), nb::int_(stored), nb::none())];
}

// Raises the present error of a signal handler with the attributes stored and keys, unless its class takes none.
[[noreturn]] void raise_with_stored(const nb::handle& keys, int64_t stored) {
  nb::python_error raised;
  const nb::object value = nb::borrow(raised.value());
  if (PyObject_SetAttrString(value.ptr(), "stored", nb::int_(stored).ptr()) != 0 ||
      PyObject_SetAttrString(value.ptr(), "keys", stored_keys(keys, stored).ptr()) != 0)
    PyErr_Clear();
  throw raised;
}

// Raises the error of a signal handler that ran during the call, or KeyboardInterrupt. If the call stores rows, the
// error says which ones are stored.
[[noreturn]] void raise_of_signal(const Status& status, const nb::handle& keys) {
  if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
  if (!keys.is_valid()) throw nb::python_error();
  int64_t stored = 0;
  for (const Field& field : status.fields())
    if (field.name == "stored") stored = field.integer;
  raise_with_stored(keys, stored);
}

}  // namespace

void raise_if_error(const Status& status, const nb::handle& keys) {
  if (status.ok()) return;
  if (status.code() == Code::kNoMemory) throw std::bad_alloc();  // nanobind makes it a MemoryError
  const PythonInside inside;
  if (PyErr_Occurred() || status.code() == Code::kInterrupted) raise_of_signal(status, keys);
  nb::dict fields;
  for (const Field& field : status.fields()) {
    nb::object value;
    if (field.kind == Field::Kind::kText) {
      value = nb::str(field.text.c_str());
    } else if (field.kind == Field::Kind::kInteger) {
      value = nb::int_(field.integer);
    } else {
      value = nb::float_(field.number);
    }
    fields[field.name.c_str()] = value;
  }
  if (keys.is_valid() && fields.contains("stored"))
    fields["keys"] = stored_keys(keys, nb::cast<int64_t>(fields["stored"]));
  nb::object error = nb::module_::import_("relive.errors").attr("from_core")(name_of(status.code()), fields);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

nb::object keys_of_stored(nb::object keys, int64_t num_rows) {
  if (PyErr_CheckSignals() != 0) raise_with_stored(keys, num_rows);
  return keys;
}

PyArray_Descr* descr_of(const std::string& dtype) {
  nb::str name(dtype.c_str());
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(name.ptr(), &descr) != NPY_SUCCEED) throw nb::python_error();
  return descr;
}

PyArray_Descr* descr_of_int64() {
  static PyArray_Descr* const descr = PyArray_DescrFromType(NPY_INT64);
  return descr;
}
PyArray_Descr* descr_of_float64() {
  static PyArray_Descr* const descr = PyArray_DescrFromType(NPY_DOUBLE);
  return descr;
}

BatchBlock::BatchBlock(size_t num_bytes) : memory_(take_block(num_bytes)), num_bytes_(num_bytes) {}

BatchBlock::~BatchBlock() {
  if (memory_ != nullptr) give_back({memory_, num_bytes_});
}

size_t size_class(size_t num_bytes) {
  const size_t grain = std::max<size_t>(64, std::bit_floor(num_bytes | 1) / 8);
  return (std::max<size_t>(num_bytes, 1) + grain - 1) / grain * grain;
}

BatchBuffer::BatchBuffer(BatchBlock&& from) : next_(from.memory()) {
  auto block = std::make_unique<Block>(Block{from.memory_, from.num_bytes_});
  owner_ = nb::steal(PyCapsule_New(block.get(), nullptr, &give_back_capsule));
  if (!owner_.is_valid()) throw nb::python_error();
  (void)block.release();
  from.memory_ = nullptr;
}

std::byte* BatchBuffer::take(size_t num_bytes) {
  std::byte* taken = next_;
  next_ += room_for(num_bytes);
  return taken;
}

nb::object BatchBuffer::array(PyArray_Descr* descr, int num_dims, const npy_intp* dims, std::byte* data) const {
  Py_INCREF(reinterpret_cast<PyObject*>(descr));
  PyObject* made = PyArray_NewFromDescr(&PyArray_Type, descr, num_dims, dims, nullptr, data, NPY_ARRAY_CARRAY, nullptr);
  if (made == nullptr) throw nb::python_error();
  Py_INCREF(owner_.ptr());
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made), owner_.ptr()) < 0) {
    Py_DECREF(made);
    throw nb::python_error();
  }
  return nb::steal(made);
}

// The value of a numpy scalar whose type was checked. The stable ABI hides the structs of scalars.
#ifdef Py_LIMITED_API
#define RELIVE_SCALAR(value, kind, out) PyArray_ScalarAsCtype(value, out)
#else
#define RELIVE_SCALAR(value, kind, out) (*(out) = PyArrayScalar_VAL(value, kind))
#endif

bool take_scalar(PyObject* value, int type_number, ScalarRoom* room) {
  if (type_number == NPY_FLOAT) {
    if (PyArray_IsScalar(value, Float)) {
      RELIVE_SCALAR(value, Float, &room->f4);
      return true;
    }
    if (!PyFloat_Check(value)) return false;
    const double wide = PyFloat_AsDouble(value);
    room->f4 = static_cast<float>(wide);
    return !std::isinf(room->f4) || std::isinf(wide);
  }
  if (type_number == NPY_DOUBLE && PyFloat_Check(value)) {
    room->f8 = PyFloat_AsDouble(value);
    return true;
  }
  if (type_number == NPY_BOOL) {
    if (PyBool_Check(value)) {
      room->u1 = value == Py_True;
    } else if (PyArray_IsScalar(value, Bool)) {
      RELIVE_SCALAR(value, Bool, &room->u1);
    } else {
      return false;
    }
    return true;
  }
  if (type_number == NPY_LONG) {
    if (PyArray_IsScalar(value, Long)) {
      RELIVE_SCALAR(value, Long, &room->i8);
      return true;
    }
    if (!PyLong_CheckExact(value)) return false;
    int overflow = 0;
    room->i8 = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0 && sizeof(long) == sizeof(int64_t);
  }
  return false;
}

nb::object new_array(int type_number, int num_dims, const npy_intp* dims, void** data) {
  PyObject* made = PyArray_SimpleNew(num_dims, const_cast<npy_intp*>(dims), type_number);
  if (made == nullptr) throw nb::python_error();
  *data = PyArray_DATA(reinterpret_cast<PyArrayObject*>(made));
  return nb::steal(made);
}

nb::object as_contiguous(nb::handle value, int type_number) {
  const PythonInside inside;
  PyObject* made = PyArray_FROM_OTF(value.ptr(), type_number, NPY_ARRAY_CARRAY_RO);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace relive::bindings
