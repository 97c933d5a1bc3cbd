#include "conformance/generator/coverage.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "conformance/generator/idle_keys.hpp"
#include "engine/config/schema.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;

constexpr const char* kLeftOut = "left out";
constexpr const char* kGiven = "given";
constexpr int kMostNumbers = 2048;  // more values than the axes have

std::string power_of_two(int64_t count) {
  if (count < 2) return std::to_string(count);
  const int exponent = static_cast<int>(std::log2(static_cast<double>(count)));
  return "2^" + std::to_string(exponent);
}

// What can be told apart of a key's values.
std::vector<std::string> words_of(const Values& values) {
  switch (values.type) {
    case ValueType::Boolean:
      return {"true", "false"};
    case ValueType::DataType:
      return {kDataTypes[0], kDataTypes[1], kDataTypes[2]};
    case ValueType::Norm:
      return {"2", "inf"};
    case ValueType::Choice:
      return {values.choice->names.begin(), values.choice->names.end()};
    default:
      return {kGiven};
  }
}

std::string word_of(const Row& row, const json& value) {
  const auto& type = row.values.type;
  if (type == ValueType::Boolean) return value.dump();
  if (type == ValueType::DataType) {
    const auto found = data_type_names().find(lower(value.get<std::string>()));
    return found == data_type_names().end() ? kGiven : name_of(found->second);
  }
  if (type == ValueType::Norm || type == ValueType::Choice)
    return value.is_string() ? value.get<std::string>() : value.dump();
  return kGiven;
}

int64_t numel_of(const WorkloadTensor& tensor) {
  int64_t numel = 1;
  for (const int64_t size : tensor.sizes) numel *= size;
  return numel;
}

using Facts = std::set<std::pair<std::string, std::string>>;  // axis, value

void add_tensors(const Workload& workload, Facts& facts) {
  for (const auto& tensor : workload.tensors) {
    facts.emplace("tensor role", tensor.role);
    facts.emplace("tensor layout", tensor.layout);
    facts.emplace("tensor type", tensor.dtype);
    facts.emplace("tensor values", tensor.values);
    facts.emplace("tensor dimensions", std::to_string(tensor.sizes.size()));
    facts.emplace("tensor elements", power_of_two(numel_of(tensor)));
    facts.emplace("hook", tensor.hook);
    facts.emplace("names of a tensor", tensor.second_name.empty() ? "1" : "2");
  }
}

// Of a mesh: how many ranks share what, and the network that they share.
void add_core(const Workload& workload, Facts& facts) {
  facts.emplace("data x sequence x tensor ranks", std::to_string(workload.data_ranks()) + " x " +
                                                      std::to_string(workload.sequence_ranks()) +
                                                      " x " +
                                                      std::to_string(workload.tensor_ranks()));
  if (!workload.core) return;
  const auto& core = *workload.core;
  const auto keys = core.key_heads / core.tensor;
  const auto yes = [](bool is_so) { return is_so ? "yes" : "no"; };
  facts.emplace("core layers", std::to_string(core.layers));
  facts.emplace("core query heads of a key/value head",
                std::to_string(core.heads / core.key_heads));
  facts.emplace("core ranks of a key/value head",
                std::to_string(std::max<int64_t>(1, core.sequence / keys)));
  facts.emplace("core features", power_of_two(core.features));
  facts.emplace("core positions of a rank", power_of_two(core.context / core.sequence));
  facts.emplace("core entries of a rank", power_of_two(core.vocabulary / core.tensor));
  facts.emplace("core head tied", yes(core.is_tied));
  facts.emplace("core padding", yes(core.has_padding));
  facts.emplace("core unused column", yes(core.has_spare));
  facts.emplace("core bias of packed heads", yes(core.has_qkv_bias));
  facts.emplace("core loss", core.loss);
  facts.emplace("core labels", core.labels);
  facts.emplace("core frozen", core.frozen);
}

Facts facts_of(const GeneratedCase& one) {
  const auto& what = one.workload;
  const auto& how = one.execution;
  Facts facts = {{"stage", std::to_string(how.stage)},
                 {"ranks", std::to_string(what.world)},
                 {"accumulation", std::to_string(what.accumulation)},
                 {"steps", power_of_two(what.steps)},
                 {"tensors", power_of_two(static_cast<int64_t>(what.tensors.size()))},
                 {"groups", std::to_string(what.groups.size())},
                 {"communicator", how.adversary == 0 ? "plain" : "late"},
                 {"way in", how.way_in},
                 {"rate set", what.rates.empty() ? "no" : "yes"},
                 {"saved and loaded", how.resumed_before < 0 ? "no" : "yes"}};
  add_tensors(what, facts);
  add_core(what, facts);
  for (const auto& event : what.passes) facts.emplace("pass", event.what);
  for (const auto& event : how.events) facts.emplace("harmless event", event.what);
  const auto config = engine_config(one, 1.0);
  for (const auto& row : schema().rows()) {
    if (row.treatment == KeyTreatment::Section) continue;
    const auto* value = at_path(config, row.path);
    facts.emplace(row.path, value == nullptr ? kLeftOut : word_of(row, *value));
  }
  return facts;
}

// Numbers that are known without a case.
const std::map<std::string, std::vector<std::string>>& known_numbers() {
  static const std::map<std::string, std::vector<std::string>> values = {
      {"stage", {"0", "1", "2", "3"}},
      {"ranks", {"1", "2", "3", "4", "5", "6", "7", "8"}},
      {"accumulation", {"1", "2", "3", "4", "5", "6", "8", "12", "16"}},
      {"steps", {"1", "2^1", "2^2", "2^3", "2^4", "2^5", "2^6", "2^7"}},
      {"tensors", {"1", "2^1", "2^2", "2^3", "2^5", "2^6", "2^7", "2^8"}},
      {"groups", {"1", "2", "3"}},
      {"data x sequence x tensor ranks",
       {"1 x 1 x 1", "2 x 1 x 1", "3 x 1 x 1", "4 x 1 x 1", "1 x 1 x 2", "1 x 1 x 4", "2 x 1 x 2",
        "1 x 2 x 1", "1 x 4 x 1", "2 x 2 x 1", "1 x 2 x 2"}},
      {"core layers", {"1", "2", "3"}},
      {"core query heads of a key/value head", {"1", "2", "3", "4"}},
      {"core ranks of a key/value head", {"1", "2", "4"}},
      {"core features", {"2^1", "2^2", "2^3", "2^4"}},
      {"core positions of a rank", {"1", "2^1", "2^2"}},
      {"core entries of a rank", {"2^1", "2^2", "2^3"}},
      {"core head tied", {"no", "yes"}},
      {"core padding", {"no", "yes"}},
      {"core unused column", {"no", "yes"}},
      {"core bias of packed heads", {"no", "yes"}},
      {"communicator", {"plain", "late"}},
      {"rate set", {"no", "yes"}},
      {"saved and loaded", {"no", "yes"}},
      {"tensor dimensions", {"0", "1", "2", "3", "4"}},
      {"tensor elements", {"0", "1", "2^1", "2^4", "2^8", "2^12", "2^17", "2^21", "2^22"}},
      {"names of a tensor", {"1", "2"}}};
  return values;
}

}  // namespace

Coverage::Coverage() : pairs_(std::size_t{kMostNumbers} * kMostNumbers) {
  for (const auto* known : {&known_numbers(), &case_words()})
    for (const auto& [axis, values] : *known)
      for (const auto& value : values) seen_[axis][value] = 0;
  for (const auto& row : schema().rows()) {
    if (row.treatment == KeyTreatment::Section) continue;
    seen_[row.path][kLeftOut] = 0;
    const bool is_read = row.treatment == KeyTreatment::Read;
    for (const auto& word : is_read ? words_of(row.values) : std::vector<std::string>{kGiven})
      seen_[row.path][word] = 0;
  }
}

void Coverage::add(const GeneratedCase& one) {
  const auto facts = facts_of(one);
  std::vector<std::pair<int, std::string_view>> numbers;  // with the axis
  for (const auto& [axis, value] : facts) {
    ++seen_[axis][value];
    if (value == kLeftOut) continue;
    const auto number = static_cast<int>(numbers_.size());
    numbers.emplace_back(numbers_.emplace(axis + "=" + value, number).first->second, axis);
  }
  for (const auto& [a, axis] : numbers)
    for (const auto& [b, other] : numbers) {
      if (a >= b || b >= kMostNumbers || axis == other) continue;
      auto is_known = pairs_[static_cast<std::size_t>(a * kMostNumbers + b)];
      pair_count_ += is_known ? 0 : 1;
      is_known = true;
    }
}

std::vector<Axis> Coverage::axes() const {
  std::vector<Axis> axes;
  for (const auto& [name, values] : seen_) {
    Axis axis{.name = name, .cases = {}, .never = {}};
    for (const auto& [value, cases] : values) {
      if (cases == 0)
        axis.never.push_back(value);
      else
        axis.cases[value] = cases;
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

}  // namespace equigrad::conformance
