#include "property_tests/programs/listing.hpp"

#include <array>
#include <map>

namespace equigrad::property_tests::programs {
namespace {

std::string misuse_text(const std::string& what) {
  const std::string access = "engine->access().";
  const std::map<std::string, std::string> calls = {
      {"step in no_sync", "engine->step();"},
      {"step without backward", "engine->step();"},
      {"nested no_sync", "(void)engine->no_sync();"},
      {"no_sync at this stage", "(void)engine->no_sync();"},
      {"batch size in a window", "engine->set_train_batch_size(2 * world);"},
      {"batch size that is no multiple", "engine->set_train_batch_size(2 * world + 1);"},
      {"backward of an output",
       "engine->backward(network.run(batch(0), 0).outputs[0].expand({2, -1, -1}));"},
      {"unscaled loss", "network.run(batch(0), 1).loss.backward();"},
      {"loss scaled twice", "engine->backward(engine->scale(network.run(batch(0), 1).loss));"},
      {"scale without a graph", "(void)engine->scale(at::ones({}));"},
      {"keyword without a scheduler", "engine->step({{\"epoch\", 1.0}});"},
      {"write of another rank",
       "auto scope = engine->gather({network.weight()}, 0); if (rank > 0) "
       "{ const at::NoGradGuard no_grad; network.weight().add_(1); } scope.end();"},
      {"unknown name", access + "full_master(\"nobody\");"},
      {"frozen name", access + "full_gradient(\"frozen\");"},
      {"unknown state", access + "full_optimizer_state(\"first.weight\", \"exp_average\");"},
      {"another shape", access + "set_full_gradient(\"first.weight\", at::ones({1, 1, 1}));"},
      {"values that differ",
       access + "set_full_master(\"first.weight\", at::full(network.weight().sizes(), rank, "
                "at::kFloat));"},
      {"another call on rank 0", "rank == 0 ? " + access + "full_master(\"first.weight\") : " +
                                     access + "full_gradient(\"first.weight\");"}};
  return "try { " + calls.at(what) + " } catch (const Error&) {}  // " + what;
}

std::string text_of_bool(bool value) { return value ? "true" : "false"; }

std::string run_text(const json& call, const std::string& branch, const std::string& where = "") {
  return "network.run(batch(" + call.at("batch").dump() + "), " + branch + where + ")";
}

std::string branch_text(const json& call) {
  const auto branch = call.at("branch").dump();
  if (!call.at("by_rank").get<bool>()) return branch;
  return branch == "5" ? "rank % 2 == 0 ? 5 : 0" : "(" + branch + " + rank) % 5";
}

std::string engine_text(const json& call) {
  return "engines[" + std::to_string(call.value("engine", 0)) + "]";
}

std::string pass_text(const json& call, const std::string& roots) {
  std::string text = "differentiate({" + roots + "}, {.style = " + call.at("style").dump();
  text += ", .fp16 = fp16";
  if (call.value("retain", false)) text += ", .retain = true";
  if (!call.value("scale_wrt_gas", true)) text += ", .scale_wrt_gas = false";
  if (call.value("infinite", false)) text += ", .infinite = rank == 0";
  return text + "}, " + engine_text(call) + ".get());";
}

// The styles that need no helper, in the words of a user.
std::string backward_text(const json& call) {
  std::string roots, losses;
  for (const auto& slot : call.at("slots")) {
    const std::string kept = "kept[" + slot.dump() + "]";
    roots += (roots.empty() ? "" : ", ") + kept;
    losses += (losses.empty() ? "" : " + ") + kept + ".loss";
  }
  if (call.value("infinite", false) || call.at("style").get<int>() >= 2)
    return pass_text(call, roots);
  const auto retain = text_of_bool(call.value("retain", false));
  if (call.at("style") == 0)
    return engine_text(call) + "->backward(" + losses + ", " + retain + ", " +
           text_of_bool(call.value("scale_wrt_gas", true)) + ");";
  return engine_text(call) + "->scale(" + losses + ").backward({}, " + retain + ");";
}

std::string throw_text(const json& call) {
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

std::string written_text(const json& call) {
  const json written = {{"value", call.at("value")}, {"infinite", call.value("infinite", false)}};
  return "R\"(" + written.dump() + ")\"_json";
}

std::string access_text(const json& call) {
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
    const std::string value = "value(" + written_text(call) + ", " + of + ")";
    text += call.at("local").get<bool>() ? ", mine(" + of + ", " + value + ")" : ", " + value;
  }
  return text + ");";
}

std::string gather_text(const json& call) {
  const std::string of =
      std::to_string(call.value("engine", 0)) + ", \"" + call.at("name").get<std::string>() + "\"";
  const auto& writer = call.at("writer");
  const std::string open =
      "{ auto scope = " + engine_text(call) + "->gather({parameter(" + of + ")}";
  if (writer.is_null()) return open + "); }";
  return open + ", " + writer.dump() + "); if (rank == " + writer.dump() +
         ") { const at::NoGradGuard no_grad; parameter(" + of + ").copy_(value(" +
         written_text(call) + ", " + of + ")); } }";
}

}  // namespace

std::string text_of(const json& call) {
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
  if (name == "gather") return gather_text(call);
  if (name == "look")
    return std::string(call.at("alone").get<bool>() ? "if (rank == 0) " : "") +
           "{ const at::NoGradGuard no_grad; " + run_text(call, "3") + "; }";
  if (name == "grad")
    return "torch::autograd::grad({" + run_text(call, "1", ", Throw::None, false") +
           ".loss}, {network.weight()});";
  if (name == "refuse") return misuse_text(call.at("what"));
  return "// then everything is compared";
}

std::string listing(const json& setting, const json& config, const json& calls) {
  std::string text =
      "const json setting = R\"(" + setting.dump() +
      ")\"_json;\nconst bool fp16 = " + text_of_bool(setting.at("precision") == 2) +
      ";\nNetwork network(setting);\n"
      "std::vector<std::unique_ptr<Engine>> engines;\n"
      "for (const auto& model : network.models())\n"
      "  engines.push_back(initialize(*model, R\"(" +
      config.dump() +
      ")\", context.group()));\n"
      "if (fp16 && engines.size() == 2) engines[1]->share_loss_scale(*engines[0]);\n"
      "auto& engine = engines[0];\n"
      "const int rank = context.rank(), world = context.world_size();\n"
      "const auto batch = [&](int n) { return batch_of(setting, rank, n); };\n"
      "std::map<int, Kept> kept;\nstd::vector<std::shared_ptr<void>> guards;\n"
      "const auto value = [&](const json& call, std::size_t of, const std::string& name) {\n"
      "  return value_for(engines[of]->access().full_master(name), call);\n};\n"
      "const auto parameter = [&](std::size_t of, const std::string& name) {\n"
      "  return network.models()[of]->named_parameters()[name];\n};\n"
      "const auto mine = [&](std::size_t of, const std::string& name, at::Tensor whole) {\n"
      "  for (const auto& shard : engines[of]->local_shards())\n"
      "    if (shard.name == name)\n"
      "      whole = whole.flatten().slice(0, shard.begin, shard.end);\n"
      "  return whole;\n};\n";
  for (const auto& call : calls) text += text_of(call) + "\n";
  return text;
}

}  // namespace equigrad::property_tests::programs
