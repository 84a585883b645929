// A save of a table in memory, and the load of a table from it.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core_rig.hpp"
#include "relive/index/kinds.hpp"
#include "relive/save/loader.hpp"
#include "relive/save/saver.hpp"

namespace rig {

// An image of a page, with the place that a save notes beside it.
struct KeptImage {
  SavedImage note;
  std::vector<std::byte> bytes;
};

struct Save {
  NameShape shape;
  SavedNumbers numbers;
  std::vector<SavedArea> areas;  // `at` is not used
  std::vector<std::vector<std::byte>> bytes;
  std::map<uint64_t, KeptImage> images;  // by page: those that the cut names
  uint64_t num_steps = 0;

  // Borrows the bytes of this save.
  SavedState state() const {
    SavedState state{};
    state.shape = shape;
    state.numbers = numbers;
    for (size_t k = 0; k < areas.size(); ++k)
      state.areas.push_back({areas[k].name, areas[k].index, bytes[k].data(), bytes[k].size()});
    return state;
  }
};

inline NameShape shape_of(const Region& r) {
  NameShape shape;
  shape.num_pages = r.geometry->num_pages;
  while (1u << shape.page_shift != r.page_len) ++shape.page_shift;
  shape.slot_bits = r.geometry->slot_bits;
  shape.max_lanes = r.geometry->max_lanes;
  shape.shard = r.geometry->shard;
  return shape;
}

// One round of images. Its buffer has room for three of the largest, so that calls of fill() end in the middle.
inline Status fill_round(Saver& saver, std::vector<KeptImage>* images) {
  std::vector<std::byte> buffer(3 * saver.form().most_image_bytes());
  while (true) {
    std::vector<SavedImage> got;
    RELIVE_RETURN_IF_ERROR(saver.fill(buffer.data(), buffer.size(), &got));
    if (got.empty()) return {};
    for (const SavedImage& one : got) {
      const std::byte* const from = buffer.data() + one.offset;
      images->push_back({one, {from, from + one.num_bytes}});
    }
  }
}

// Saves a table in memory. Calls change(0) between two rounds before the cut, and change(1) between cut and rest.
// has_rounds: false: all pages are copied after the cut, as those that writers close just before it.
template <class Change>
Save save_while(Table& table, Change&& change, bool has_rounds = true) {
  const Region& r = table.region();
  Save save;
  save.shape = shape_of(r);
  Saver saver(table);
  CHECK(saver.begin(nullptr, 0).ok());
  std::vector<KeptImage> images;
  if (has_rounds) CHECK(fill_round(saver, &images).ok());
  change(0);
  saver.next_round();
  if (has_rounds) CHECK(fill_round(saver, &images).ok());
  CHECK(saver.cut(Deadline::after(10.0)).ok());
  save.areas = saver.areas();
  for (const SavedArea& area : saver.areas()) save.bytes.emplace_back(area.at, area.at + area.num_bytes());
  save.numbers = saver.numbers();
  save.num_steps = saver.num_steps();
  const std::vector<SavedImage> pages = saver.pages();
  change(1);
  CHECK(fill_round(saver, &images).ok());
  saver.end();
  for (const SavedImage& page : pages) {
    for (KeptImage& image : images)
      if (image.note.page == page.page && image.note.ref == page.ref &&
          (image.note.ticket == 0 || image.note.ticket == page.ticket))
        save.images[page.page] = image;
    if (save.images.count(page.page) == 0) harness::fail(__FILE__, __LINE__, "a page of the cut has no image");
  }
  return save;
}

inline Save save_of(Table& table) {
  return save_while(table, [](int) {});
}

// The configuration under which a save of `saved` is loaded with another capacity.
inline TableConfig loading_config(TableConfig config, const Save& save, uint64_t capacity) {
  const bool grows = config.capacity <= capacity && capacity <= 8 * config.capacity;
  config.page_len = 1u << save.shape.page_shift;
  config.slot_bits = grows ? save.shape.slot_bits : 0;
  config.capacity = capacity;
  return config;
}

inline Status load(const TableConfig& config, const Save& save, std::unique_ptr<Table>* out,
                   bool* keeps_keys = nullptr) {
  const SavedState state = save.state();
  std::unique_ptr<Loader> loader;
  RELIVE_RETURN_IF_ERROR(Loader::make(config, "", state, &loader));
  if (keeps_keys != nullptr) *keeps_keys = loader->keeps_keys();
  for (const auto& [page, image] : save.images)
    if (loader->wants(page)) RELIVE_RETURN_IF_ERROR(loader->put(page, image.bytes.data(), image.bytes.size()));
  return loader->finish(out);
}

// A status as text, for messages.
inline std::string text_of(const Status& status) {
  std::string text = name_of(status.code());
  for (const Field& field : status.fields())
    text += " " + field.name + " " + (field.text.empty() ? std::to_string(field.integer) : field.text);
  return text;
}

// Appends rows of two lanes, a few of which end an episode. Returns their keys.
inline std::vector<int64_t> feed(Table& table, Writer& writer, size_t num_steps, std::mt19937_64& random) {
  const Region& r = table.region();
  std::vector<int64_t> keys;
  const auto is_free = [&](uint32_t c) {  // states are promised before, and an episode keeps its value
    return r.columns[c].kind != ColumnKind::kState && r.columns[c].kind != ColumnKind::kEpisode;
  };
  for (size_t step = 0; step < num_steps; ++step) {
    std::vector<std::vector<std::byte>> cells;
    StepBlock block;
    block.num_rows = 1;
    block.num_lanes = 2;
    block.has_next = true;
    for (uint32_t c = 0; c < r.geometry->num_columns; ++c)
      cells.emplace_back(2 * r.columns[c].num_bytes, std::byte{static_cast<uint8_t>(is_free(c) ? random() % 7 : 0)});
    for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
      const auto num_bytes = static_cast<int64_t>(r.columns[c].num_bytes);
      const bool is_late = r.columns[c].kind == ColumnKind::kLate;
      block.columns.push_back(is_late ? Cells{} : Cells{cells[c].data(), 2 * num_bytes, num_bytes});
      block.next.push_back(block.columns.back());
    }
    const uint8_t ends[2] = {step % 7 == 6, step % 9 == 8};
    const float priorities[2] = {1.5f, 2.5f};
    block.terminated = {reinterpret_cast<const std::byte*>(ends), 2, 1};
    for (uint32_t i = 0; i < r.num_indexes; ++i)
      if (kind_of(r.header->indexes[i].sampling).has_priorities && !r.map(i).is_explicit && random() % 2 == 0)
        block.priority = {reinterpret_cast<const std::byte*>(priorities), 8, 4};
    int64_t got[2] = {-1, -1};
    const Status status = writer.write(block, 0.0, got);
    if (status.code() == Code::kDeadlineExceeded) break;
    if (!status.ok()) harness::fail(__FILE__, __LINE__, "write: " + text_of(status));
    if (!status.ok()) break;
    keys.insert(keys.end(), got, got + 2);
  }
  return keys;
}

}  // namespace rig
