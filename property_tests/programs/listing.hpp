// Listing: a program as C++ that can be pasted into a rank of a test.
//
//   ranks::run_ranks(world, [](RankContext& context) { <the listing> })
//
// Invariants: the listing makes the calls that EnginePlayer makes, in the same order.
// Units: none.   Errors: none.
// Depends on: call_texts.hpp. No torch.
#pragma once

#include <string>

#include "property_tests/programs/call_texts.hpp"

namespace equigrad::property_tests::programs {

// The whole program.
inline std::string listing(const json& setting, const json& config, const json& calls) {
  std::string text =
      "const json setting = R\"(" + setting.dump() +
      ")\"_json;\nconst bool fp16 = " + text_of(setting.at("precision") == 2) +
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
      "const auto value = [&](int n, std::size_t of, const std::string& name) {\n"
      "  return value_for(engines[of]->access().full_master(name), n);\n};\n"
      "const auto mine = [&](std::size_t of, const std::string& name, at::Tensor whole) {\n"
      "  for (const auto& shard : engines[of]->local_shards())\n"
      "    if (shard.name == name)\n"
      "      whole = whole.flatten().slice(0, shard.begin, shard.end);\n"
      "  return whole;\n};\n";
  for (const auto& call : calls) text += text_of(call) + "\n";
  return text;
}

}  // namespace equigrad::property_tests::programs
