// Makes the core's TableConfig from the dict of create_table. The Python side has checked its values. An unknown name
// of a key or of a kind is refused here, and so is a value of the wrong type.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "module.hpp"
#include "relive/index/kinds.hpp"

namespace relive::bindings {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& got) {
  raise_if_error(
      Status(Code::kInvalidConfig).with_text("what", what).with_text("expected", expected).with_text("got", got));
  throw nb::python_error();  // never reached: the status is an error
}

std::string shown(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }

// The kind of this name, of the kinds that the core knows.
template <class Kind>
Kind kind_of(const std::string& what, const std::string& name,
             std::initializer_list<std::pair<const char*, Kind>> known) {
  std::string names;
  for (const auto& [one, kind] : known) {
    if (name == one) return kind;
    names += (names.empty() ? "'" : " or '") + std::string(one) + "'";
  }
  refuse(what, names + " (what this core knows)", name);
}

using Names = std::vector<const char*>;

// One dict of the configuration. Every key is checked against the known names, every value against its type.
class Part final {
 public:
  Part(nb::handle from, std::string what, const Names& known) : what_(std::move(what)) {
    if (!nb::isinstance<nb::dict>(from)) refuse(what_, "a dict", shown(from));
    from_ = nb::borrow<nb::dict>(from);
    std::string names;
    for (const char* name : known) names += (names.empty() ? "" : ", ") + std::string(name);
    for (nb::handle key : from_.keys()) {
      const auto is_it = [&](const char* name) { return key.equal(nb::str(name)); };
      if (!std::any_of(known.begin(), known.end(), is_it)) refuse("key of " + what_, "one of " + names, shown(key));
    }
  }

  bool has(const char* name) const { return from_.contains(name); }

  nb::object object(const char* name) const {
    if (!has(name)) refuse(of(name), "a value", "none");
    return nb::borrow(from_[name]);
  }

  template <class T>
  T get(const char* name) const {
    const nb::object value = object(name);
    try {
      return nb::cast<T>(value);
    } catch (const nb::cast_error&) {
      refuse(of(name), "a value of its type, in its range", shown(value));
    }
  }

  template <class T>
  T get_or(const char* name, T otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }

  template <class Kind>
  Kind kind(const char* name, std::initializer_list<std::pair<const char*, Kind>> known) const {
    return kind_of(of(name), get<std::string>(name), known);
  }

  std::string of(const char* name) const { return std::string(name) + " of " + what_; }

 private:
  std::string what_;
  nb::dict from_;
};

ColumnConfig column_config(nb::handle row) {
  if (!nb::isinstance<nb::tuple>(row) || nb::len(row) != 4) refuse("column", "(name, dtype, shape, kind)", shown(row));
  const auto entry = nb::borrow<nb::tuple>(row);
  ColumnConfig column;
  try {
    column.name = nb::cast<std::string>(entry[0]);
    column.dtype = nb::cast<std::string>(entry[1]);
    for (nb::handle dim : nb::cast<nb::tuple>(entry[2])) column.shape.push_back(nb::cast<int64_t>(dim));
    column.kind = kind_of<ColumnKind>("kind of column '" + column.name + "'", nb::cast<std::string>(entry[3]),
                                      {{"step", ColumnKind::kStep},
                                       {"state", ColumnKind::kState},
                                       {"start", ColumnKind::kStart},
                                       {"late", ColumnKind::kLate},
                                       {"episode", ColumnKind::kEpisode}});
  } catch (const nb::cast_error&) {
    refuse("column", "(name, dtype, shape, kind)", shown(row));
  }
  PyArray_Descr* descr = descr_of(column.dtype);
  column.item_bytes = static_cast<uint64_t>(PyDataType_ELSIZE(descr));
  Py_DECREF(descr);
  return column;
}

// ---- an index, part by part; each function reads the options that the Python class of its name writes --------------

// Windows are (name, length, stride), columns are as those of a table.
void read_explicit(const Part& from, IndexConfig* index, std::vector<ColumnConfig>* item_columns) {
  index->n_step = 1;
  index->gamma = 1.0;
  std::fill(std::begin(index->stack), std::end(index->stack), 1u);
  index->map = LeafMap::kExplicit;
  index->max_items = from.get<uint64_t>("max_items");
  const auto windows = from.get<nb::list>("windows");
  if (nb::len(windows) > kMaxWindows) refuse(from.of("windows"), "at most 32", std::to_string(nb::len(windows)));
  for (nb::handle row : windows) {
    WindowConfig& window = index->windows[index->num_windows++];
    try {
      const auto [name, length, stride] = nb::cast<std::tuple<std::string, uint32_t, uint32_t>>(row);
      if (name.size() >= sizeof window.name) refuse(from.of("windows"), "names of at most 47 bytes", shown(row));
      std::memcpy(window.name, name.data(), name.size());
      window.length = length;
      window.stride = stride;
    } catch (const nb::cast_error&) {
      refuse(from.of("windows"), "(name, length, stride)", shown(row));
    }
  }
  for (nb::handle row : from.get<nb::list>("columns")) item_columns->push_back(column_config(row));
}

// The number of the column of this name.
uint32_t column_of(const std::string& what, const std::vector<ColumnConfig>& columns, const std::string& name) {
  const auto is_it = [&name](const ColumnConfig& column) { return column.name == name; };
  const auto found = std::find_if(columns.begin(), columns.end(), is_it);
  if (found == columns.end()) refuse(what, "a column of the table", name);
  return static_cast<uint32_t>(found - columns.begin());
}

// A member of a group has one window. group_by names the column by which groups form.
void read_groups(const Part& from, const std::vector<ColumnConfig>& columns, IndexConfig* index) {
  index->n_step = 1;
  index->gamma = from.get<double>("gamma");
  std::fill(std::begin(index->stack), std::end(index->stack), 1u);
  index->map = LeafMap::kExplicit;
  index->max_items = from.get<uint64_t>("max_groups");
  index->num_windows = 1;
  index->windows[0].length = from.get<uint32_t>("length");
  index->windows[0].stride = 1;
  index->group.size = from.get<uint32_t>("group_size");
  if (index->group.size == 0) refuse(from.of("group_size"), "1 to 64", "0");
  index->group.too_long = from.kind<TooLong>(
      "too_long",
      {{"refuse", TooLong::kRefuse}, {"head", TooLong::kHead}, {"tail", TooLong::kTail}, {"random", TooLong::kRandom}});
  index->group.column = column_of(from.of("group_by"), columns, from.get<std::string>("group_by"));
  if (!from.has("weight")) return;
  index->group.weight = from.kind<GroupWeight>("weight", {{"mean", GroupWeight::kMean},
                                                          {"variance", GroupWeight::kVariance},
                                                          {"any_mean", GroupWeight::kAnyMean},
                                                          {"any_variance", GroupWeight::kAnyVariance}});
  index->group.weighed =
      static_cast<uint16_t>(column_of(from.of("weighed"), columns, from.get<std::string>("weighed")));
}

void read_sequence(const Part& from, SequenceConfig* sequence) {
  sequence->length = from.get<uint32_t>("length");
  sequence->burn_in = from.get<uint32_t>("burn_in");
  sequence->bootstrap = from.get<uint32_t>("bootstrap");
  sequence->period = from.get<uint32_t>("period");
  sequence->at_end = from.kind<AtEnd>(
      "at_end", {{"pad", AtEnd::kPad}, {"shift", AtEnd::kShift}, {"drop", AtEnd::kDrop}, {"cross", AtEnd::kCross}});
  sequence->pad = from.kind<PadSide>("pad", {{"right", PadSide::kRight}, {"left", PadSide::kLeft}});
  sequence->only_ended = from.get<bool>("only_ended") ? 1 : 0;
  sequence->only_the_last = from.get<bool>("only_the_last") ? 1 : 0;
  if (from.get_or<bool>("one_at_random", false)) sequence->only_the_last = kOneAtRandom;
  sequence->longest = from.get<uint32_t>("longest");
}

void read_hindsight(nb::handle row, const std::vector<ColumnConfig>& columns, HindsightConfig* hindsight) {
  const Part from(row, "hindsight", {"strategy", "goal", "achieved", "share"});
  hindsight->goals = from.kind<Goals>(
      "strategy", {{"future", Goals::kFuture}, {"final", Goals::kFinal}, {"episode", Goals::kEpisode}});
  hindsight->goal = column_of(from.of("goal"), columns, from.get<std::string>("goal"));
  hindsight->achieved = column_of(from.of("achieved"), columns, from.get<std::string>("achieved"));
  hindsight->share = from.get<double>("share");
}

void read_items(const Part& from, const std::vector<ColumnConfig>& columns, IndexConfig* index,
                std::vector<ColumnConfig>* item_columns) {
  enum class Kind { kTransitions, kSequences, kExplicit, kGroups };
  const Kind kind = from.kind<Kind>("items", {{"transitions", Kind::kTransitions},
                                              {"sequences", Kind::kSequences},
                                              {"explicit", Kind::kExplicit},
                                              {"groups", Kind::kGroups}});
  if (kind == Kind::kGroups) return read_groups(from, columns, index);
  if (kind == Kind::kExplicit) return read_explicit(from, index, item_columns);
  if (kind == Kind::kSequences) {
    read_sequence(from, &index->sequence);
    index->time_major = from.get_or<bool>("time_major", false) ? 1 : 0;
  }
  if (from.has("hindsight")) read_hindsight(from.object("hindsight"), columns, &index->hindsight);
  index->max_items = from.get_or<uint64_t>("max_items", 0);
  index->n_step = from.get_or<uint32_t>("n_step", 1);
  index->gamma = from.get<double>("gamma");
  index->stack_pad = from.kind<StackPad>("stack_pad", {{"repeat", StackPad::kRepeat}, {"zeros", StackPad::kZeros}});
  const auto stack = from.get<nb::dict>("stack");
  for (nb::handle name : stack.keys()) {
    const auto is_it = [&](const ColumnConfig& column) { return name.equal(nb::str(column.name.c_str())); };
    if (std::none_of(columns.begin(), columns.end(), is_it))
      refuse(from.of("stack"), "columns of the table", shown(name));
  }
  for (size_t c = 0; c < columns.size(); ++c)
    index->stack[c] = stack.contains(columns[c].name.c_str()) ? nb::cast<uint32_t>(stack[columns[c].name.c_str()]) : 1;
}

void read_sampler(const Part& from, IndexConfig* index) {
  std::string known;
  if (const auto name = from.get<std::string>("sampler"); !find_sampler(name, &index->sampling, &known))
    refuse(from.of("sampler"), known + " (what this core knows)", name);
  index->priority_exponent = from.get_or<double>("priority_exponent", 1.0);
  index->best_items = from.get_or<uint64_t>("best_items", 0);
  index->best_share = from.get_or<double>("best_share", 0.0);
  index->initial = Initial::kMax;
  if (!from.has("initial")) return;
  const auto initial = from.get<nb::tuple>("initial");
  if (nb::len(initial) != 2) refuse(from.of("initial"), "(kind, number)", shown(initial));
  index->initial = kind_of<Initial>(from.of("initial"), nb::cast<std::string>(nb::str(initial[0])),
                                    {{"max", Initial::kMax}, {"given", Initial::kGiven}, {"number", Initial::kNumber}});
  index->initial_number = nb::cast<double>(initial[1]);
}

void read_remover(const Part& from, IndexConfig* index) {
  std::string known;
  if (const auto name = from.get<std::string>("remover"); !find_remover(name, &index->removal, &known))
    refuse(from.of("remover"), known + " (what this core knows)", name);
  index->removal_exponent = from.get_or<double>("removal_exponent", 1.0);
}

void read_limiter(const Part& from, IndexConfig* index) {
  const auto kind = from.kind<uint32_t>("limiter", {{"min_size", LimiterConfig::kMinSize},
                                                    {"samples_per_insert", LimiterConfig::kSamplesPerInsert},
                                                    {"queue", LimiterConfig::kQueue},
                                                    {"staleness_budget", LimiterConfig::kStalenessBudget}});
  if (kind == LimiterConfig::kSamplesPerInsert)
    index->limiter = make_samples_per_insert(from.get<double>("samples_per_insert"), from.get<int64_t>("min_size"),
                                             from.get_or<double>("tolerance", -1.0));
  else if (kind == LimiterConfig::kQueue)
    index->limiter = make_queue(from.get<int64_t>("max_size"));
  else if (kind == LimiterConfig::kStalenessBudget)
    index->limiter = make_staleness_budget(from.get<double>("eta"), from.get<double>("items_per_version"));
  else
    index->limiter = make_min_size(from.get<int64_t>("min_size"));
}

// ---- the options of an index

// An index has the options of a part if its items are of one of these kinds. Unknown kinds count as rows here, and are
// refused by read_items().
enum Items : uint32_t { kRowItems = 1, kExplicitItems = 2, kGroupItems = 4, kAllItems = 7 };

struct OptionsOfPart {
  uint32_t items;  // kinds that have this part, of Items
  Names names;     // in the order that a refusal lists them
};

// Every option of an index, by part. A new option is one name in the line of its part.
const std::vector<OptionsOfPart>& index_parts() {
  static const auto& parts = *new std::vector<OptionsOfPart>{
      {kAllItems, {"name", "items"}},
      {kGroupItems, {"length", "group_by", "group_size", "max_groups", "too_long", "gamma"}},
      {kExplicitItems, {"windows", "columns", "max_items"}},
      {kRowItems, {"n_step", "gamma", "stack", "stack_pad"}},
      {kAllItems, {"sampler", "priority_exponent", "best_items", "best_share", "initial"}},
      {kAllItems, {"limiter", "min_size", "samples_per_insert", "tolerance", "max_size", "eta", "items_per_version"}},
      {kAllItems, {"remover", "removal_exponent", "max_times_sampled"}},
      {kRowItems, {"max_items"}},
      {kAllItems, {"max_wait_s", "versions_kept", "last", "decay", "distinct"}},
      {kGroupItems, {"weight", "weighed"}},
      {kRowItems, {"where"}},
      {kRowItems,
       {"length", "burn_in", "bootstrap", "period", "at_end", "pad", "only_ended", "only_the_last", "one_at_random",
        "longest", "time_major"}},
      {kRowItems, {"hindsight"}},
  };
  return parts;
}

Names options_of(Items items) {
  Names names;
  for (const OptionsOfPart& part : index_parts())
    if ((part.items & items) != 0) names.insert(names.end(), part.names.begin(), part.names.end());
  return names;
}

// The kind of items that the dict of an index names.
Items items_of(nb::handle row) {
  if (!nb::isinstance<nb::dict>(row)) return kRowItems;
  const auto from = nb::borrow<nb::dict>(row);
  if (!from.contains("items")) return kRowItems;
  const nb::object items = from["items"];
  if (items.equal(nb::str("groups"))) return kGroupItems;
  return items.equal(nb::str("explicit")) ? kExplicitItems : kRowItems;
}

IndexConfig index_config(nb::handle row, const std::vector<ColumnConfig>& columns,
                         std::vector<ColumnConfig>* item_columns) {
  std::string name;
  if (nb::isinstance<nb::dict>(row)) {
    const auto from = nb::borrow<nb::dict>(row);
    if (from.contains("name")) name = " " + shown(from["name"]);
  }
  const Part from(row, "index" + name, options_of(items_of(row)));
  IndexConfig index;
  std::memset(&index, 0, sizeof index);
  const auto text = from.get<std::string>("name");
  std::memcpy(index.name, text.data(), std::min(text.size(), sizeof index.name - 1));
  read_items(from, columns, &index, item_columns);
  read_sampler(from, &index);
  read_limiter(from, &index);
  read_remover(from, &index);
  index.traits = from.get_or<bool>("distinct", false) ? kIsDistinct : 0;
  index.max_times_sampled = from.get<uint32_t>("max_times_sampled");
  index.max_wait_s = from.get_or<double>("max_wait_s", 0.0);
  index.versions_kept = from.get_or<uint64_t>("versions_kept", 0);
  index.latest = from.get_or<uint64_t>("last", 0);
  index.decay = from.get_or<double>("decay", 0.0);
  return index;
}

}  // namespace

TableConfig table_config(const nb::dict& given) {
  const Part from(given, "the table's configuration",
                  {"columns", "indexes", "capacity", "max_lanes", "max_participants", "seed", "shard", "epoch",
                   "metadata", "tier", "page_len", "slot_bits", "keeps_file"});
  TableConfig config;
  for (nb::handle row : from.get<nb::list>("columns")) config.columns.push_back(column_config(row));
  for (nb::handle row : from.get<nb::list>("indexes")) {
    config.item_columns.emplace_back();
    config.indexes.push_back(index_config(row, config.columns, &config.item_columns.back()));
    const auto index = nb::borrow<nb::dict>(row);
    config.conditions.push_back(index.contains("where") ? written_operations(nb::cast<nb::list>(index["where"]))
                                                        : std::vector<WrittenOperation>());
  }
  config.capacity = from.get<uint64_t>("capacity");
  config.max_lanes = from.get<uint32_t>("max_lanes");
  config.max_participants = from.get<uint32_t>("max_participants");
  config.seed = from.get<uint64_t>("seed");
  config.shard = from.get<uint64_t>("shard");
  config.epoch = from.get<uint64_t>("epoch");
  config.page_len = from.get_or<uint32_t>("page_len", 0);
  config.slot_bits = from.get_or<uint32_t>("slot_bits", 0);
  config.keeps_file = from.get_or<bool>("keeps_file", false);
  const auto metadata = from.get<nb::bytes>("metadata");
  config.metadata.assign(metadata.c_str(), metadata.size());
  if (from.has("tier")) {
    const Part tier(from.object("tier"), "the tiers",
                    {"directory", "ram_bytes", "staging_fraction", "min_column_bytes", "io_threads"});
    config.tier.directory = tier.get<std::string>("directory");
    config.tier.ram_bytes = tier.get<uint64_t>("ram_bytes");
    config.tier.staging_fraction = tier.get<double>("staging_fraction");
    config.tier.min_column_bytes = tier.get<uint32_t>("min_column_bytes");
    config.tier.num_io_threads = tier.get<uint32_t>("io_threads");
  }
  return config;
}

}  // namespace relive::bindings
