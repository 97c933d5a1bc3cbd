// The sections of zero_optimization: leaf_module and offload_param.
#include <algorithm>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

const std::string kLeaf = "zero_optimization.leaf_module.";
const std::string kOffload = "zero_optimization.offload_param.";

void read_list(ConfigReader& reader, const std::string& path, std::vector<std::string>& list) {
  if (!reader.has(path)) return;
  const Json& given = *reader.find(path);
  const auto is_name = [](const Json& one) { return one.is_string() && one != ""; };
  if (given.is_array() && std::all_of(given.begin(), given.end(), is_name))
    list = given.get<std::vector<std::string>>();
  else
    reader.problem(path,
                   "expected a list of names, got " + shown(given) + R"(. Write ["experts"].)");
}

void read_offload(ConfigReader& reader, ZeroConfig& zero) {
  const bool to_cpu = reads_cpu(reader, kOffload + "device");
  const bool pin_memory = reader.boolean(kOffload + "pin_memory", zero.offload_param.pin_memory);
  if (to_cpu) zero.offload_param = {true, pin_memory};
}

}  // namespace

bool reads_cpu(ConfigReader& reader, const std::string& path) {
  const std::string device = reader.text(path, "none");
  if (device == "nvme")
    reader.problem(path,
                   "expected \"none\" or \"cpu\", got \"nvme\", which is not supported by this "
                   "version. Use \"cpu\".");
  else if (device != "none" && device != "cpu")
    reader.problem(path, "expected \"none\" or \"cpu\", got \"" + device + "\"." +
                             did_you_mean(device, {"none", "cpu"}));
  return device == "cpu";
}

void read_zero_sections(ConfigReader& reader, EngineConfig& config) {
  LeafModuleConfig& leaf = config.zero.leaf_module;
  read_list(reader, kLeaf + "classes", leaf.classes);
  read_list(reader, kLeaf + "names", leaf.names);
  read_list(reader, kLeaf + "name_suffixes", leaf.name_suffixes);
  read_offload(reader, config.zero);
}

void add_zero_sections(const ZeroConfig& zero, SettingList& list) {
  const auto add = [&](const std::string& path, const Json& value, const std::string& note = "") {
    list.add(path, value, note);
    if (zero.stage != 3) list.last_has_no_effect("parameters are whole below stage 3");
  };
  add(kLeaf + "classes", zero.leaf_module.classes, "those that the model has");
  add(kLeaf + "names", zero.leaf_module.names);
  add(kLeaf + "name_suffixes", zero.leaf_module.name_suffixes);
  list.add(kOffload + "device", zero.offload_param.to_cpu ? "cpu" : "none");
  list.add_as_given(kOffload + "pin_memory", zero.offload_param.pin_memory,
                    zero.offload_param.to_cpu ? "" : "it is off");
}

}  // namespace equigrad
