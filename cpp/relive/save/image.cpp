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

// The heads and cell words of a page's rows, read before its rows: they say which late columns are there, and which
// start cells (rule J5).
struct FirstWords {
  uint32_t heads[kMostRows];
  uint32_t cells[kMostRows];
  uint32_t num_cells = 0;
};

// The head of a row as the image shows it.
uint32_t head_of(const Region& r, uint64_t page, uint32_t row, const ImageRows& rows) {
  const bool is_last = r.slot_of(page, row) + 1 == rows.last.slot;
  return is_last ? rows.last.head : load_head(r.page_base(page) + row * r.geometry->record_stride);
}

void read_first(const ImageForm& form, uint64_t page, const ImageRows& rows, FirstWords* words) {
  const Region& r = form.region();
  const std::byte* const base = r.page_base(page);
  words->num_cells = 0;
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    const std::byte* const record = base + row * r.geometry->record_stride;
    words->heads[row] = head_of(r, page, row, rows);
    const bool has_cell = form.cell_stride() != 0 && row < rows.num_steps && !r.is_tail(page, row);
    words->cells[row] = !has_cell ? kNoCell : r.cells ? load_cell_word(record) : row;
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

// Calls each(place of the part in the region, its bytes) for the parts that lie in the region as in the image: records
// and large columns.
template <class Each>
void for_each_run(const Region& r, uint64_t page, uint32_t num_rows, Each&& each) {
  std::byte* const base = r.page_base(page);
  each(base, num_rows * r.geometry->record_stride);
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c)
    if (r.columns[c].area == Area::kLarge) each(base + r.columns[c].offset, num_rows * r.columns[c].stride);
}

// The same for marks and pending priorities.
template <class Each>
void for_each_extra(const Region& r, uint64_t page, uint32_t num_rows, Each&& each) {
  const uint64_t slot = r.slot_of(page, 0);
  each(reinterpret_cast<std::byte*>(r.marks + slot), num_rows * sizeof(Mark));
  for (const uint32_t i : r.given_apart())
    each(reinterpret_cast<std::byte*>(&r.given(i, slot)), num_rows * sizeof(uint32_t));
}

// The bytes of a row in a tiered region.
std::byte* row_of(const Region& r, const PagePlace& place, uint32_t c, uint32_t row) {
  const ColumnLayout& column = r.columns[c];
  return (column.area == Area::kBulk ? place.bulk : r.page_base(place.page)) + column.offset + row * column.stride;
}

// Calls each(place in the tiered region, offset in the image, bytes) for each row of each column but those of cells.
template <class Each>
void for_each_value(const ImageForm& form, const PagePlace& place, uint32_t num_rows, Each&& each) {
  const Region& r = form.region();
  uint64_t large = sizeof(ImageHead) + num_rows * form.record_stride();
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = form.column(c);
    if (column.area == Area::kCell) continue;
    const uint64_t first = column.area == Area::kRecord ? sizeof(ImageHead) + column.offset : large;
    for (uint32_t row = 0; row < num_rows; ++row)
      each(row_of(r, place, c, row), first + row * column.stride, column.num_bytes);
    large += column.area == Area::kRecord ? 0 : num_rows * column.stride;
  }
}

// Calls each(place in the tiered region, offset in a cell, bytes) for the columns of a row that images keep in cells.
template <class Each>
void for_each_of_cell(const ImageForm& form, const PagePlace& place, uint32_t row, Each&& each) {
  for (uint32_t c = 0; c < form.region().geometry->num_columns; ++c)
    if (const ColumnLayout& column = form.column(c); column.area == Area::kCell)
      each(row_of(form.region(), place, c, row), column.offset, column.num_bytes);
}

uint32_t sum_of(const std::byte* image, uint64_t num_bytes) {
  constexpr size_t kBehind = offsetof(ImageHead, num_bytes);
  return crc32c(image + kBehind, num_bytes - kBehind);
}

}  // namespace

ImageForm::ImageForm(const Region& r, const Layout* plain) : r_(r), plain_(plain) {
  const Geometry& g = plain == nullptr ? *r.geometry : plain->geometry;
  record_stride_ = g.record_stride;
  cell_stride_ = g.cells.stride;
  large_stride_ = 0;
  for (uint32_t c = 0; c < g.num_columns; ++c)
    if (column(c).area == Area::kLarge) large_stride_ += column(c).stride;
}

uint64_t ImageForm::image_bytes(uint64_t num_rows, uint64_t num_cells) const {
  const uint64_t of_row = record_stride_ + large_stride_ + sizeof(Mark) + sizeof(uint32_t) * r_.given_apart().size();
  return round_up(sizeof(ImageHead) + num_rows * of_row + num_cells * cell_stride_, 64);
}

namespace {

// The start cells of an image, after the heads of the rows are written to their records.
void copy_cells_out(const ImageForm& form, const PagePlace& from, const ImageRows& rows, const FirstWords& words,
                    std::byte* records, Place* place) {
  const Region& r = form.region();
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    store_cell_word(records + row * form.record_stride(), words.cells[row]);
    if (words.cells[row] == kNoCell) continue;
    std::byte* const cell = place->take(form.cell_stride());
    if (r.cells) {
      // A page that went while it was copied may show any number here; the caller finds its word changed.
      const uint64_t number = std::min<uint64_t>(words.cells[row], r.cells.geometry->num_cells - 1);
      copy_bytes(cell, r.cells.at(number), form.cell_stride());
    } else {
      std::memset(cell, 0, form.cell_stride());
      for_each_of_cell(form, from, row, [cell](const std::byte* at, uint64_t offset, uint64_t num_bytes) {
        copy_bytes(cell + offset, at, num_bytes);
      });
    }
  }
}

}  // namespace

size_t copy_out(const ImageForm& form, const PagePlace& from, const ImageRows& rows, uint64_t ref, std::byte* to,
                size_t room) {
  const Region& r = form.region();
  thread_local FirstWords words_of_thread;
  FirstWords& words = words_of_thread;
  read_first(form, from.page, rows, &words);
  RELIVE_COPIED(false);
  const uint64_t num_bytes = form.image_bytes(rows.num_rows, words.num_cells);
  if (num_bytes > room) return 0;
  std::memset(to + num_bytes - 64, 0, 64);
  Place place(to);
  std::byte* const head = place.take(sizeof(ImageHead));
  std::byte* const records = place.now();
  const auto copy_run = [&place](const std::byte* at, uint64_t bytes) { copy_bytes(place.take(bytes), at, bytes); };
  if (form.is_regions()) {
    for_each_run(r, from.page, rows.num_rows, copy_run);
  } else {
    const uint64_t bytes = rows.num_rows * (form.record_stride() + form.large_stride());
    std::memset(place.take(bytes), 0, bytes);
    for_each_value(form, from, rows.num_rows,
                   [to](const std::byte* at, uint64_t offset, uint64_t count) { copy_bytes(to + offset, at, count); });
  }
  std::byte* const marks = place.now();
  for_each_extra(r, from.page, rows.num_rows, copy_run);
  RELIVE_COPIED(true);
  for (uint32_t row = 0; row < rows.num_rows; ++row) {
    const uint32_t head = RELIVE_RULE(J5_heads) ? words.heads[row] : head_of(r, from.page, row, rows);
    std::memcpy(records + row * form.record_stride(), &head, sizeof head);
  }
  if (form.cell_stride() != 0) copy_cells_out(form, from, rows, words, records, &place);
  const uint64_t last = rows.last.slot - 1;
  if (rows.last.slot != 0 && r.page_of(last) == from.page && r.offset_of(last) < rows.num_rows) {
    std::byte* const mark = marks + r.offset_of(last) * sizeof(Mark);
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

const char* wrong_image(const ImageForm& form, const std::byte* image, size_t num_bytes) {
  ImageHead head;
  if (num_bytes < sizeof head) return "an image that is too short";
  std::memcpy(&head, image, sizeof head);
  if (head.magic != kImageMagic || head.num_bytes != num_bytes) return "an image that does not begin like one";
  if (sum_of(image, num_bytes) != head.sum) return "an image with another checksum";
  const bool has_cells = form.cell_stride() != 0;
  if (head.num_rows > form.region().page_len || head.num_cells > head.num_rows || (head.num_cells != 0 && !has_cells) ||
      form.image_bytes(head.num_rows, head.num_cells) != num_bytes)
    return "an image of other rows";
  uint32_t cells = 0;
  const std::byte* const records = image + sizeof head;
  for (uint32_t row = 0; has_cells && row < head.num_rows; ++row)
    cells += load_cell_word(records + row * form.record_stride()) == kNoCell ? 0 : 1;
  return cells == head.num_cells ? nullptr : "an image with another number of start cells";
}

namespace {

// Takes start cells for the rows of an image that have one. cells: those of the image.
void copy_cells_in(Region& r, uint64_t page, uint32_t num_rows, const std::byte* cells, uint64_t* next_cell) {
  std::byte* const base = r.page_base(page);
  for (uint32_t row = 0; row < num_rows; ++row) {
    std::byte* const record = base + row * r.geometry->record_stride;
    if (load_cell_word(record) == kNoCell) continue;
    const auto cell = static_cast<uint32_t>((*next_cell)++);
    std::memcpy(r.cells.at(cell), cells, r.cells.geometry->stride);
    cells += r.cells.geometry->stride;
    r.cells.links[cell].store(r.pages[page].first_cell.load(kRelaxed), kRelaxed);
    r.pages[page].first_cell.store(cell + 1, kRelaxed);
    store_cell_word(record, cell);
  }
}

// The same for a tiered region: it keeps start values in the rows. A row without a cell gets zeros.
void copy_starts_in(const ImageForm& form, const PagePlace& to, const std::byte* image, uint32_t num_rows,
                    const std::byte* cells) {
  const std::byte* const records = image + sizeof(ImageHead);
  for (uint32_t row = 0; row < num_rows; ++row) {
    const bool has_cell = load_cell_word(records + row * form.record_stride()) != kNoCell;
    for_each_of_cell(form, to, row, [&](std::byte* at, uint64_t offset, uint64_t num_bytes) {
      if (has_cell) {
        std::memcpy(at, cells + offset, num_bytes);
      } else {
        std::memset(at, 0, num_bytes);
      }
    });
    if (has_cell) cells += form.cell_stride();
  }
}

}  // namespace

void copy_in(Held& held, const ImageForm& form, const PagePlace& to, const std::byte* image, uint64_t* next_cell) {
  Region& r = held.region;
  ImageHead head;
  std::memcpy(&head, image, sizeof head);
  const std::byte* from = image + sizeof head;
  const auto copy_run = [&from](std::byte* at, uint64_t bytes) {
    std::memcpy(at, from, bytes);
    from += bytes;
  };
  if (form.is_regions()) {
    for_each_run(r, to.page, head.num_rows, copy_run);
  } else {
    from += head.num_rows * (form.record_stride() + form.large_stride());
    for (uint32_t row = 0; row < head.num_rows; ++row)
      std::memcpy(r.page_base(to.page) + row * r.geometry->record_stride,
                  image + sizeof head + row * form.record_stride(), sizeof(uint32_t));
    for_each_value(form, to, head.num_rows, [image](std::byte* at, uint64_t offset, uint64_t num_bytes) {
      std::memcpy(at, image + offset, num_bytes);
    });
  }
  for_each_extra(r, to.page, head.num_rows, copy_run);
  if (r.cells) {
    copy_cells_in(r, to.page, head.num_rows, from, next_cell);
  } else if (form.cell_stride() != 0) {
    copy_starts_in(form, to, image, head.num_rows, from);
  }
}

}  // namespace relive
