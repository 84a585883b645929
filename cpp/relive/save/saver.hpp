// One save of a table: its pages and state as they are at one moment, copied while other processes go on (rule J5).
//
//   begin   memory for the state is taken and touched
//   fill    without the lock, in rounds: images of CLOSED pages that the save does not have
//   cut     takes the lock once: pins all pages, copies everything that is no row
//   fill    without the lock, pages pinned: the pages of the cut whose image the save does not have
//   end     unpins the pages
//
// Owner:   a Saver belongs to one thread at a time and borrows its Table. It owns the copied state.
// Locking: cut() is one critical section; nothing else takes the table lock but the end of the pin.
// Cost:    cut() copies 10 bytes for each slot and index, and more where an index has trees beside its leaves. Memory:
//          as much, 24 bytes for each page, and of a tiered table the large columns of one page.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "relive/pages/pin_all.hpp"
#include "relive/save/areas.hpp"
#include "relive/save/image.hpp"
#include "relive/table/table.hpp"

namespace relive {

// An image that a save has, or has just got.
struct SavedImage {
  uint64_t page;
  uint64_t ref;
  uint64_t ticket;  // 0: of this cut alone
  uint64_t offset;  // in the buffer of the call
  uint64_t num_bytes;
  uint64_t num_cells;  // start cells in it
};

class Saver final {
 public:
  explicit Saver(Table& table) : table_(table) {}
  ~Saver() { end(); }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // known: the images that the save has of this very region, by page.
  Status begin(const SavedImage* known, size_t count);
  // Copies the next images of this round, or of the cut, into a buffer. Nothing more came: the round is over. Room for
  // one image of the largest size (ImageForm::most_image_bytes()) is always enough. Reads the disk for pages of a tiered
  // table that are there, and returns the error of such a read.
  Status fill(std::byte* to, size_t room, std::vector<SavedImage>* images);
  void next_round() { next_page_ = 0; }
  // Bytes of the pages that a cut would have to copy now, those of open pages included.
  Status bytes_missing(uint64_t* num_bytes) const;
  Status cut(const Deadline& deadline);
  void end();

  const ImageForm& form() const { return *form_; }  // after begin()
  bool is_cut() const { return !words_.empty(); }
  double cut_s() const { return cut_s_; }  // for which cut() had the lock
  // After cut(): the state, in the order of saved_areas() and then the order of the members of classes (kRankOrder) of
  // each index by ranks. The images that the cut consists of must name the pages.
  const std::vector<SavedArea>& areas() const { return areas_; }  // their `at` is the copy
  const SavedNumbers& numbers() const { return numbers_; }
  uint64_t num_steps() const { return num_steps_; }
  // The pages of the cut: page, ref and ticket. The image of a page has the same page and ref, and that ticket or 0.
  std::vector<SavedImage> pages() const;

 private:
  struct Known {
    uint64_t ref = 0, ticket = 0;
  };
  Status touch_memory();
  void copy_large(const SavedArea& live, SavedArea* copy);
  void copy_large_again(const SavedArea& live, SavedArea* copy);
  void copy_state(Held& held);
  void list_ranks();
  bool is_missing(uint64_t page, uint64_t word, uint64_t ticket) const;
  // The result for one page: no image, an image, or the buffer is full.
  struct Copied {
    std::optional<SavedImage> image;
    bool is_full = false;
    size_t num_bytes = 0;
  };
  Status copy_closed(uint64_t page, std::byte* to, size_t room, Copied* copied);
  Status copy_of_cut(uint64_t page, std::byte* to, size_t room, Copied* copied);
  Status copy_page(uint64_t page, const ImageRows& rows, uint64_t ref, std::byte* to, size_t room, Copied* copied);
  Status read_bulk(uint64_t page, std::byte** bulk);
  ImageRows rows_of_cut(uint64_t page, uint64_t word) const;

  Table& table_;
  std::optional<ImageForm> form_;
  std::unique_ptr<Storage> bulk_;  // of one page, read from the disk
  std::vector<Known> known_;       // of each page
  uint64_t next_page_ = 0;
  std::vector<SavedArea> live_, areas_;
  std::vector<std::vector<std::byte>> memory_;
  // A copy of the classes of one index by ranks, and the order of their members, listed after the cut.
  struct RankCopy {
    uint32_t index;
    std::unique_ptr<Storage> memory;
    Ranks ranks;
    std::vector<uint32_t> order;
  };
  std::vector<RankCopy> ranks_;
  std::vector<std::vector<uint64_t>> record_words_;  // of items, as the large areas of their index were copied; else 0
  SavedNumbers numbers_{};
  std::vector<LastRow> last_rows_;         // of each lane
  std::vector<uint64_t> words_, tickets_;  // of each page, at the cut
  uint64_t num_steps_ = 0;
  double cut_s_ = 0.0;
  std::unique_ptr<PinAll> pin_;
  std::unique_ptr<Entered> entered_;
};

}  // namespace relive
