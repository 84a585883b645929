// Saves whose words, lengths and images lie: each load is one error, or a table that passes check() and can be drawn
// from, appended to and closed.
#include <functional>

#include "relive/words/crc32c.hpp"
#include "save_rig.hpp"

using namespace rig;

namespace {

constexpr uint32_t kCoreFloats = 80;  // of a start value: too many for the row

struct TableKind {
  const char* name;
  std::function<void(TableConfig*)> change;
};

Sampling sampler(const char* name) {
  Sampling found{};
  std::string known;
  CHECK(find_sampler(name, &found, &known));
  return found;
}

Removal remover(const char* name) {
  Removal found{};
  std::string known;
  CHECK(find_remover(name, &found, &known));
  return found;
}

// An explicit index whose items have num_windows windows.
IndexConfig explicit_index_of(uint32_t num_windows) {
  IndexConfig index{};
  std::snprintf(index.name, sizeof index.name, "items");
  index.n_step = 1;
  index.gamma = 0.5;
  index.initial = Initial::kMax;
  index.initial_number = 1.0;
  index.limiter = make_min_size(1);
  for (uint32_t& frames : index.stack) frames = 1;
  index.map = LeafMap::kExplicit;
  index.max_items = 12;
  index.num_windows = num_windows;
  for (uint32_t w = 0; w < num_windows; ++w) {
    if (num_windows > 1) std::snprintf(index.windows[w].name, sizeof index.windows[w].name, "w%u", w);
    index.windows[w].length = 4;
    index.windows[w].stride = 1;
  }
  return index;
}

IndexConfig groups_over(uint32_t column) {
  IndexConfig index = explicit_index_of(1);
  index.windows[0].length = 16;
  index.group.size = 2;
  index.group.column = column;
  return index;
}

void shift_sequences(TableConfig* config) {
  config->columns.push_back(column("core", "<f4", {kCoreFloats}, 4, ColumnKind::kStart));
  config->indexes[0].sequence = {5, 4, 1, 3, AtEnd::kShift, PadSide::kRight, 0, 0, 0};
}

const std::vector<TableKind>& kinds() {
  static const std::vector<TableKind> all = {
      {"uniform", [](TableConfig*) {}},
      {"prioritized", [](TableConfig* c) { c->indexes[0].sampling = Sampling::kPrioritized; }},
      {"given",
       [](TableConfig* c) {
         c->indexes[0].sampling = Sampling::kPrioritized;
         c->indexes[0].initial = Initial::kGiven;
         c->indexes[0].max_times_sampled = 3;
       }},
      {"late",
       [](TableConfig* c) {
         c->columns.push_back(column("late", "<f4", {}, 4, ColumnKind::kLate));
         c->indexes[0].sampling = Sampling::kPrioritized;
       }},
      {"shift", shift_sequences},
      {"cross", [](TableConfig* c) { c->indexes[0].sequence = {6, 0, 0, 3, AtEnd::kCross, PadSide::kRight, 0, 0, 0}; }},
      {"shuffle", [](TableConfig* c) { c->indexes[0].sampling = sampler("shuffle"); }},
      {"ranks", [](TableConfig* c) { c->indexes[0].sampling = sampler("rank_based"); }},
      {"fifo",
       [](TableConfig* c) {
         c->indexes[0].sampling = sampler("fifo");
         c->indexes[0].max_items = 20;
         c->indexes[0].removal = remover("lifo");
       }},
      {"lightest",
       [](TableConfig* c) {
         c->indexes[0].sampling = Sampling::kPrioritized;
         c->indexes[0].max_items = 20;
         c->indexes[0].removal = remover("min_priority");
       }},
      {"latest",
       [](TableConfig* c) {
         c->indexes[0].sampling = sampler("latest");
         c->indexes[0].latest = 12;
       }},
      {"fading",
       [](TableConfig* c) {
         c->indexes[0].sampling = sampler("fading");
         c->indexes[0].decay = 0.9;
       }},
      {"explicit", [](TableConfig* c) { c->indexes.push_back(explicit_index_of(2)); }},
      {"groups",
       [](TableConfig* c) {
         c->columns.push_back(column("prompt", "<i8", {}, 8, ColumnKind::kEpisode));
         c->indexes.push_back(groups_over(static_cast<uint32_t>(c->columns.size()) - 1));
       }},
  };
  return all;
}

struct World {
  TableConfig config;
  std::unique_ptr<Table> table;
  std::unique_ptr<Writer> writer;
};

TableConfig config_of(const TableKind& kind) {
  Spec spec;
  spec.capacity = 60;
  TableConfig config = make_config(spec);
  kind.change(&config);
  config.item_columns.resize(config.indexes.size());
  return config;
}

// Does with a table all that its owner may do. True if the table keeps its contract.
void use(Table& table, std::mt19937_64& random) {
  const Region& r = table.region();
  std::unique_ptr<Writer> writer;
  const Status opened = Writer::open(&table, 2, &writer);
  if (opened.code() == Code::kCapacityTooSmall) return;
  if (!opened.ok()) return harness::fail(__FILE__, __LINE__, "open: " + text_of(opened));
  const auto draw = [&] {
    for (uint32_t i = 0; i < r.num_indexes; ++i) {
      std::vector<int64_t> keys(8);
      std::vector<double> probabilities(8);
      int64_t live = 0;
      GatherPlan plan;
      CHECK(relive::make_plan(table, i, {}, &plan).ok());
      std::vector<std::byte*> out;
      DrawRequest request;
      request.index = i;
      request.num_items = 8;
      request.plan = &plan;
      request.out = out.data();
      request.keys = keys.data();
      request.probabilities = probabilities.data();
      request.num_live_items = &live;
      const Status drawn = relive::sample(table, request, 0.0);
      if (!drawn.ok() && drawn.code() != Code::kDeadlineExceeded)
        harness::fail(__FILE__, __LINE__, "sample: " + text_of(drawn));
      if (!drawn.ok() || !kind_of(r.header->indexes[i].sampling).has_priorities) continue;
      const std::vector<float> priorities(8, 3.0f);
      int64_t applied = 0;
      CHECK(relive::update_priorities(table, i, keys.data(), priorities.data(), 8, &applied).ok());
    }
  };
  draw();
  const std::vector<int64_t> keys = feed(table, *writer, 60, random);
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    if (r.columns[c].kind != ColumnKind::kLate) continue;
    const std::vector<float> values(keys.size(), 1.0f);
    int64_t applied = 0;
    CHECK(relive::complete_rows(table, keys.data(), keys.size(), reinterpret_cast<const std::byte*>(values.data()),
                                sizeof(float) * values.size(), &applied)
              .ok());
  }
  draw();
  const Status closed = writer->close();
  if (!closed.ok()) harness::fail(__FILE__, __LINE__, "close: " + text_of(closed));
  const Status checked = relive::check(table);
  if (!checked.ok()) harness::fail(__FILE__, __LINE__, "check: " + text_of(checked));
}

Save make_save(const TableConfig& config, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::unique_ptr<Table> table;
  const Status made = Table::create(config, "", &table);
  if (!made.ok()) {
    std::printf("  create: %s\n", text_of(made).c_str());
    std::exit(1);  // the test itself is wrong
  }
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(table.get(), 2, &writer).ok());
  const std::vector<int64_t> keys = feed(*table, *writer, 20 + random() % 60, random);
  const Region& r = table->region();
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    if (!r.map(i).is_explicit || r.header->indexes[i].group.size != 0) continue;
    for (size_t k = 10; k + 4 < keys.size(); k += 3) {
      const WindowRows windows[2] = {{keys[keys.size() - k], 1}, {keys[keys.size() - k], 0}};
      const NewItems items{1, windows, nullptr, nullptr};
      int64_t key = 0;
      size_t stored = 0;
      (void)relive::insert_items(*table, i, items, 0.0, &key, &stored);
    }
  }
  return save_of(*table);
}

// Changes one word of a run of bytes.
void change_word(std::vector<std::byte>* bytes, std::mt19937_64& random) {
  if (bytes->size() < 8) return;
  const size_t width = random() % 2 == 0 ? 8 : 4;
  const size_t at = random() % (bytes->size() / width) * width;
  uint64_t word = 0, other = 0;
  std::memcpy(&word, bytes->data() + at, width);
  const size_t from = random() % (bytes->size() / width) * width;
  std::memcpy(&other, bytes->data() + from, width);
  switch (random() % 8) {
    case 0:
      word ^= uint64_t{1} << random() % (8 * width);
      break;
    case 1:
      word = random();
      break;
    case 2:
      word = 0;
      break;
    case 3:
      word = ~uint64_t{0};
      break;
    case 4:
      word = other;
      break;
    case 5:
      word += random() % 5 - 2;
      break;
    case 6:
      std::memcpy(bytes->data() + from, &word, width), word = other;
      break;  // two words change places
    default:
      word = random() % 300;
      break;
  }
  std::memcpy(bytes->data() + at, &word, width);
}

void sum_again(std::vector<std::byte>* image) {
  constexpr size_t kAt = offsetof(ImageHead, num_bytes);
  const uint32_t sum = crc32c(image->data() + kAt, image->size() - kAt);
  std::memcpy(image->data() + offsetof(ImageHead, sum), &sum, sizeof sum);
}

void change_shape(NameShape* shape, std::mt19937_64& random) {
  switch (random() % 5) {
    case 0:
      shape->num_pages = random() % 2 == 0 ? random() : shape->num_pages + random() % 3 - 1;
      break;
    case 1:
      shape->page_shift = static_cast<uint32_t>(random() % 40);
      break;
    case 2:
      shape->slot_bits = static_cast<uint32_t>(random() % 70);
      break;
    case 3:
      shape->max_lanes = static_cast<uint32_t>(random() % 2 == 0 ? random() : random() % 9);
      break;
    default:
      shape->shard = random() % 5000;
      break;
  }
}

void change_images(Save* save, std::mt19937_64& random) {
  if (save->images.empty()) return;
  auto at = save->images.begin();
  std::advance(at, random() % save->images.size());
  std::vector<std::byte>& image = at->second.bytes;
  switch (random() % 8) {
    case 0:
      image.resize(random() % (image.size() + 200));
      break;
    case 1:
      image[random() % image.size()] ^= std::byte{4};
      break;  // its sum tells
    case 2:
      save->images.erase(at);
      break;
    case 3:
      std::swap(image, save->images.begin()->second.bytes);
      break;
    case 4: {
      std::vector<std::byte> head(image.begin(), image.begin() + sizeof(ImageHead));
      change_word(&head, random);
      std::copy(head.begin(), head.end(), image.begin());
      sum_again(&image);
      break;
    }
    default:
      for (uint64_t times = 1 + random() % 4; times > 0; --times) change_word(&image, random);
      std::memcpy(image.data() + offsetof(ImageHead, num_bytes), &at->second.note.num_bytes, sizeof(uint64_t));
      sum_again(&image);
  }
}

void damage(Save* save, std::mt19937_64& random) {
  for (uint64_t times = 1 + random() % 3; times > 0; --times) {
    const uint64_t kind = random() % 20;
    const size_t area = random() % save->bytes.size();
    if (kind < 11) {
      change_word(&save->bytes[area], random);
    } else if (kind < 14) {
      std::vector<std::byte> numbers(sizeof(SavedNumbers));
      std::memcpy(numbers.data(), &save->numbers, numbers.size());
      numbers.resize(offsetof(SavedNumbers, indexes) + sizeof(SavedIndex) * 2);
      change_word(&numbers, random);
      std::memcpy(reinterpret_cast<std::byte*>(&save->numbers), numbers.data(), numbers.size());
    } else if (kind < 18) {
      change_images(save, random);
    } else if (kind < 19) {
      change_shape(&save->shape, random);
    } else {
      save->bytes[area].resize(random() % 2 == 0 ? random() % (save->bytes[area].size() + 99)
                                                 : save->bytes[area].size() / 2 / 8 * 8);
    }
  }
}

// Loads num_cases damaged saves of one kind. RELIVE_FIRST_CASE begins at a later one, to find a crash again.
void load_damaged(const TableKind& kind, uint64_t num_cases) {
  const TableConfig config = config_of(kind);
  const char* const from = std::getenv("RELIVE_FIRST_CASE");
  const char* const shows = std::getenv("RELIVE_SHOW_CASES");
  uint64_t num_loaded = 0;
  for (uint64_t seed = from != nullptr ? std::strtoull(from, nullptr, 10) : 0; seed < num_cases; ++seed) {
    if (shows != nullptr) std::fprintf(stderr, "%s %lu\n", kind.name, seed);
    std::mt19937_64 random(seed);
    Save save = make_save(config, seed % 8);
    damage(&save, random);
    const uint64_t capacity = std::vector<uint64_t>{60, 60, 60, 120, 480, 30, 6}[random() % 7];
    std::unique_ptr<Table> loaded;
    const int before = harness::failures();
    const Status status = load(loading_config(config, save, capacity), save, &loaded);
    if (status.ok()) {
      ++num_loaded;
      use(*loaded, random);
    } else if (status.code() != Code::kDamagedSave && status.code() != Code::kInvalidConfig &&
               status.code() != Code::kCapacityTooSmall) {
      harness::fail(__FILE__, __LINE__, "load: " + text_of(status));
    }
    if (harness::failures() > before)
      harness::fail(__FILE__, __LINE__, std::string(kind.name) + ", case " + std::to_string(seed));
    if (harness::failures() > 40) break;
  }
  std::printf("  %s: %lu of %lu loaded\n", kind.name, num_loaded, num_cases);
}

uint64_t cases_of_a_kind() {
  const char* const given = std::getenv("RELIVE_CASES");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 100;
}

}  // namespace

TEST(a_sound_save_of_every_kind_is_loaded) {
  for (const TableKind& kind : kinds()) {
    const TableConfig config = config_of(kind);
    for (const uint64_t capacity : {60, 120, 480, 30, 6}) {
      for (uint64_t seed = 0; seed < 8; ++seed) {
        std::mt19937_64 random(seed);
        const Save save = make_save(config, seed);
        std::unique_ptr<Table> loaded;
        const Status status = load(loading_config(config, save, capacity), save, &loaded);
        const int before = harness::failures();
        if (status.ok()) use(*loaded, random);
        const bool is_refused = capacity == 6 && status.code() == Code::kCapacityTooSmall;
        if ((!status.ok() && !is_refused) || harness::failures() > before)
          harness::fail(__FILE__, __LINE__,
                        std::string(kind.name) + " to " + std::to_string(capacity) + ": " + text_of(status));
      }
    }
  }
}

TEST(a_damaged_save_is_an_error_or_a_sound_table) {
  const char* const only = std::getenv("RELIVE_KIND");
  for (const TableKind& kind : kinds())
    if (only == nullptr || std::string(only) == kind.name) load_damaged(kind, cases_of_a_kind());
}

TEST_MAIN()
