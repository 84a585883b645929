#include "relive/save/image.hpp"

#include <algorithm>
#include <cstring>

#include "relive/pages/cells.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/words/crc32c.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kMostRows = 4096;  // of a page

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// The offset of the marks of num_rows rows from their records.
uint64_t marks_at(const Region& r, uint64_t num_rows) {
  uint64_t bytes = num_rows * r.geometry->record_stride;
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c)
    if (r.columns[c].area == Area::kLarge) bytes += num_rows * r.columns[c].stride;
  return bytes;
}

// Bytes of num_rows rows, without start cells and head.
uint64_t row_bytes(const Region& r, uint64_t num_rows) {
  return marks_at(r, num_rows) + num_rows * (sizeof(Mark) + sizeof(uint32_t) * r.given_apart().size());
}

uint64_t image_bytes(const Region& r, uint64_t num_rows, uint64_t num_cells) {
  const uint64_t cells = r.cells ? num_cells * r.cells.geometry->stride : 0;
  return round_up(sizeof(ImageHead) + row_bytes(r, num_rows) + cells, 64);
}

// The heads and cell words of a page's rows, read before its rows: they say which late columns are there, and which
// start cells (rule J5).
struct FirstWords {
  uint32_t heads[kMostRows];
  uint32_t cells[kMostRows];
  uint32_t num_cells = 0;
};

void read_first(const Region& r, uint64_t page, const ImageRows& rows, FirstWords* words) {
  const std::byte* const base = r.page_base(page);
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    const std::byte* const record = base + row * r.geometry->record_stride;
    words->heads[row] = r.slot_of(page, row) + 1 == rows.last.slot ? rows.last.head : load_head(record);
    const bool has_cell = r.cells && row < rows.num_steps && !r.is_tail(page, row);
    words->cells[row] = has_cell ? load_cell_word(record) : kNoCell;
    words->num_cells += words->cells[row] == kNoCell ? 0 : 1;
  }
  acquire_fence();
}

// A place that moves on with each part of an image.
class Place final {
 public:
  explicit Place(std::byte* at) : at_(at) {}
  std::byte* take(uint64_t num_bytes) {
    std::byte* const taken = at_;
    at_ += num_bytes;
    return taken;
  }
  std::byte* now() const { return at_; }

 private:
  std::byte* at_;
};

// Calls each(place of the part in the region, its bytes) for the parts of a page that lie in one run: records, large
// columns, marks, pending priorities.
template <class Each>
void for_each_part(const Region& r, uint64_t page, uint32_t num_rows, Each&& each) {
  std::byte* const base = r.page_base(page);
  each(base, num_rows * r.geometry->record_stride);
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c)
    if (r.columns[c].area == Area::kLarge) each(base + r.columns[c].offset, num_rows * r.columns[c].stride);
  const uint64_t slot = r.slot_of(page, 0);
  each(reinterpret_cast<std::byte*>(r.marks + slot), num_rows * sizeof(Mark));
  for (const uint32_t i : r.given_apart())
    each(reinterpret_cast<std::byte*>(&r.given(i, slot)), num_rows * sizeof(uint32_t));
}

uint32_t sum_of(const std::byte* image, uint64_t num_bytes) {
  constexpr size_t kBehind = offsetof(ImageHead, num_bytes);
  return crc32c(image + kBehind, num_bytes - kBehind);
}

}  // namespace

uint64_t most_image_bytes(const Region& r) { return image_bytes(r, r.page_len, r.page_len); }

size_t copy_out(const Region& r, uint64_t page, const ImageRows& rows, uint64_t ref, std::byte* to, size_t room) {
  thread_local FirstWords words_of_thread;
  FirstWords& words = words_of_thread;
  words.num_cells = 0;
  read_first(r, page, rows, &words);
  const uint64_t num_bytes = image_bytes(r, rows.num_rows, words.num_cells);
  if (num_bytes > room) return 0;
  std::memset(to + num_bytes - 64, 0, 64);
  Place place(to);
  std::byte* const head = place.take(sizeof(ImageHead));
  std::byte* const records = place.now();
  for_each_part(r, page, rows.num_rows,
                [&place](const std::byte* from, uint64_t bytes) { copy_bytes(place.take(bytes), from, bytes); });
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    std::byte* const record = records + row * r.geometry->record_stride;
    std::memcpy(record, &words.heads[row], sizeof words.heads[row]);
    if (!r.cells) continue;
    store_cell_word(record, words.cells[row]);
    if (words.cells[row] == kNoCell) continue;
    const uint64_t stride = r.cells.geometry->stride;
    // A page that went while it was copied may show any number here; the caller finds its word changed.
    const uint64_t cell = std::min<uint64_t>(words.cells[row], r.cells.geometry->num_cells - 1);
    copy_bytes(place.take(stride), r.cells.at(cell), stride);
  }
  if (rows.last.slot != 0 && r.page_of(rows.last.slot - 1) == page && r.offset_of(rows.last.slot - 1) < rows.num_rows) {
    std::byte* const mark = records + marks_at(r, rows.num_rows) + r.offset_of(rows.last.slot - 1) * sizeof(Mark);
    std::memcpy(mark + offsetof(Mark, discount), &rows.last.discount, sizeof rows.last.discount);
  }
  ImageHead filled{kImageMagic, 0, num_bytes, ref, rows.num_rows, words.num_cells, {}};
  std::memcpy(head, &filled, sizeof filled);
  filled.sum = sum_of(to, num_bytes);
  std::memcpy(head, &filled, sizeof filled);
  return num_bytes;
}

uint32_t cells_of(const std::byte* image) {
  ImageHead head;
  std::memcpy(&head, image, sizeof head);
  return head.num_cells;
}

const char* wrong_image(const Region& r, const std::byte* image, size_t num_bytes) {
  ImageHead head;
  if (num_bytes < sizeof head) return "an image that is too short";
  std::memcpy(&head, image, sizeof head);
  if (head.magic != kImageMagic || head.num_bytes != num_bytes) return "an image that does not begin like one";
  if (sum_of(image, num_bytes) != head.sum) return "an image with another checksum";
  if (head.num_rows > r.page_len || head.num_cells > head.num_rows || (head.num_cells != 0 && !r.cells) ||
      image_bytes(r, head.num_rows, head.num_cells) != num_bytes)
    return "an image of other rows";
  uint32_t cells = 0;
  const std::byte* const records = image + sizeof head;
  for (uint32_t row = 0; r.cells && row < head.num_rows; ++row)
    cells += load_cell_word(records + row * r.geometry->record_stride) == kNoCell ? 0 : 1;
  return cells == head.num_cells ? nullptr : "an image with another number of start cells";
}

void copy_in(Held& held, uint64_t page, const std::byte* image, uint64_t* next_cell) {
  Region& r = held.region;
  ImageHead head;
  std::memcpy(&head, image, sizeof head);
  const std::byte* from = image + sizeof head;
  for_each_part(r, page, head.num_rows, [&from](std::byte* to, uint64_t bytes) {
    std::memcpy(to, from, bytes);
    from += bytes;
  });
  if (!r.cells) return;
  std::byte* const base = r.page_base(page);
  for (uint32_t row = 0; row < head.num_rows; ++row) {
    std::byte* const record = base + row * r.geometry->record_stride;
    if (load_cell_word(record) == kNoCell) continue;
    const auto cell = static_cast<uint32_t>((*next_cell)++);
    std::memcpy(r.cells.at(cell), from, r.cells.geometry->stride);
    from += r.cells.geometry->stride;
    r.cells.links[cell].store(r.pages[page].first_cell.load(kRelaxed), kRelaxed);
    r.pages[page].first_cell.store(cell + 1, kRelaxed);
    store_cell_word(record, cell);
  }
}

}  // namespace relive
