// CallTexts: the calls of a program as C++, for its listing.
//
// Invariants: the listing makes the calls that EnginePlayer makes, in the same order.
// Units: none.   Errors: none.
// Depends on: command_seeds.hpp. No torch.
#pragma once

#include <array>
#include <string>

#include "property_tests/programs/command_seeds.hpp"
#include "property_tests/programs/misuse_texts.hpp"

namespace equigrad::property_tests::programs {

inline std::string text_of(bool value) { return value ? "true" : "false"; }

inline std::string run_text(const json& call, const std::string& branch,
                            const std::string& where = "") {
  return "network.run(batch(" + call.at("batch").dump() + "), " + branch + where + ")";
}

inline std::string branch_text(const json& call) {
  const auto branch = call.at("branch").dump();
  if (!call.at("by_rank").get<bool>()) return branch;
  return branch == "5" ? "rank % 2 == 0 ? 5 : 0" : "(" + branch + " + rank) % 5";
}

inline std::string engine_text(const json& call) {
  return "engines[" + std::to_string(call.value("engine", 0)) + "]";
}

inline std::string pass_text(const json& call, const std::string& roots) {
  std::string text = "differentiate({" + roots + "}, {.style = " + call.at("style").dump();
  text += ", .fp16 = fp16";
  if (call.value("retain", false)) text += ", .retain = true";
  if (!call.value("scale_wrt_gas", true)) text += ", .scale_wrt_gas = false";
  if (call.value("infinite", false)) text += ", .infinite = rank == 0";
  return text + "}, " + engine_text(call) + ".get());";
}

// The styles that need no helper, in the words of a user.
inline std::string backward_text(const json& call) {
  std::string roots, losses;
  for (const auto& slot : call.at("slots")) {
    const std::string kept = "kept[" + slot.dump() + "]";
    roots += (roots.empty() ? "" : ", ") + kept;
    losses += (losses.empty() ? "" : " + ") + kept + ".loss";
  }
  if (call.value("infinite", false) || call.at("style").get<int>() >= 2)
    return pass_text(call, roots);
  const auto retain = text_of(call.value("retain", false));
  if (call.at("style") == 0)
    return engine_text(call) + "->backward(" + losses + ", " + retain + ", " +
           text_of(call.value("scale_wrt_gas", true)) + ");";
  return engine_text(call) + "->scale(" + losses + ").backward({}, " + retain + ");";
}

inline std::string throw_text(const json& call) {
  const bool all = call.at("rank").is_null();
  constexpr std::array kPlaces = {"Throw::Midway", "Throw::Top", "Throw::Late"};
  const std::string place = kPlaces[call.at("place").get<std::size_t>()];
  const std::string where =
      all ? ", " + place : ", rank == " + call.at("rank").dump() + " ? " + place + " : Throw::None";
  std::string text = "try {\n  " + pass_text(call, run_text(call, "1", where)) +
                     "\n} catch (const std::exception&) {\n";
  if (call.at("again").get<bool>())
    text += "  " + pass_text(call, run_text(call, "1")) + "  // the others count it\n";
  text += "}";
  if (call.at("probe").get<bool>()) text += "  // a getter in between is refused";
  if (call.at("counts").get<bool>() && !call.at("again").get<bool>())
    text += "\nfor (auto& engine : engines) engine->zero_grad();";
  return text;
}

inline std::string access_text(const json& call) {
  const std::string what = call.at("what"), name = "\"" + call.at("name").get<std::string>() + "\"";
  if (what == "parameter") return engine_text(call) + "->full_parameter(" + name + ");";
  const std::string scope = call.at("local").get<bool>() ? "local_" : "full_";
  const bool state = what != "gradient" && what != "master";
  std::string text = engine_text(call) + "->access()." +
                     std::string(call.at("call") == "set" ? "set_" : "") + scope +
                     (state ? "optimizer_state" : what) + "(" + name;
  if (state) text += ", \"" + what + "\"";
  if (call.at("call") == "set") {
    const std::string of = std::to_string(call.value("engine", 0)) + ", " + name;
    const std::string value = "value(" + call.at("value").dump() + ", " + of + ")";
    text += call.at("local").get<bool>() ? ", mine(" + of + ", " + value + ")" : ", " + value;
  }
  return text + ");";
}

inline std::string text_of(const json& call) {
  const std::string name = call.at("call");
  if (name == "forward")
    return "kept[" + call.at("slot").dump() + "] = " + run_text(call, branch_text(call)) + ";";
  if (name == "backward") return backward_text(call);
  if (name == "throw") return throw_text(call);
  if (name == "twice")
    return "kept[0] = " + run_text(call, call.at("branch").dump()) + ";\n" +
           pass_text(call, "kept[0]") + "\ntry { " + pass_text(call, "kept[0]") +
           " } catch (const std::exception&) {}";
  const std::string each = "for (auto& engine : engines) ";
  if (name == "zero_grad") return each + "engine->zero_grad();";
  if (name == "step") return each + "engine->step();";
  if (name == "boundary") {
    const auto& value = call.at("value");
    return each + "engine->set_gradient_accumulation_boundary(" +
           (value.is_null() ? "std::nullopt" : value.dump()) + ");";
  }
  if (name == "no_sync") return each + "guards.push_back(engine->no_sync());";
  if (name == "end_no_sync") return "guards.clear();";
  if (name == "batch_size")
    return each + "engine->set_train_batch_size(" + call.at("accumulation").dump() +
           " * 2 * world);";
  if (name == "get" || name == "set") return access_text(call);
  if (name == "look")
    return std::string(call.at("alone").get<bool>() ? "if (rank == 0) " : "") +
           "{ const at::NoGradGuard no_grad; " + run_text(call, "3") + "; }";
  if (name == "grad")
    return "torch::autograd::grad({" + run_text(call, "1", ", Throw::None, false") +
           ".loss}, {network.weight()});";
  if (name == "refuse") return misuse_text(call.at("what"));
  return "// then everything is compared";
}

}  // namespace equigrad::property_tests::programs
