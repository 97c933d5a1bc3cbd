#include "engine/core/same_start.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "engine/config/values.hpp"
#include "engine/core/together.hpp"
#include "engine/error.hpp"

namespace equigrad::core {
namespace {

using Lines = std::vector<std::string>;

// Fowler, Noll and Vo's hash, FNV-1a, of 64 bits.
std::string digest_of(const std::string& text) {
  uint64_t digest = 14695981039346656037ULL;
  for (const char c : text) {
    digest ^= static_cast<unsigned char>(c);
    digest *= 1099511628211ULL;
  }
  return fmt::format("{:016x}", digest);
}

Lines lines_of(const std::vector<ParameterGroup>& groups) {
  Lines lines;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto word = [](const std::optional<double>& value) {
      return value ? fmt::format("{}", *value) : "the configured";
    };
    if (const auto& settings = groups[group].settings; !settings.empty())
      lines.push_back(fmt::format("parameter group {} with {}", group, settings));
    else
      lines.push_back(fmt::format("parameter group {} with learning rate {}, weight decay {}",
                                  group, word(groups[group].lr), word(groups[group].weight_decay)));
    for (const auto& [name, tensor, module_type] : groups[group].parameters) {
      if (!tensor.defined()) continue;  // refused as what it is
      lines.push_back(fmt::format(
          "parameter \"{}\" of {} [{}]{}", name, c10::toString(tensor.scalar_type()),
          fmt::join(tensor.sizes().vec(), ", "), tensor.requires_grad() ? "" : ", frozen"));
    }
  }
  return lines;
}

Lines split(const std::string& text) {
  Lines lines;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// The first line in which the two part; "none" behind the end of the shorter.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const Lines first = split(a), second = split(b);
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    const std::string one = i < first.size() ? first[i] : "none";
    const std::string other = i < second.size() ? second[i] : "none";
    if (one != other) return {one, other};
  }
  return {};
}

void require_same(comm::Communicator& ranks, const std::string& what, const Lines& mine) {
  if (ranks.world_size() == 1) return;
  std::string text;
  for (const auto& line : mine) text += line + "\n";
  const auto digests = together(ranks, "initialize", [&] { return digest_of(text); });
  const auto other = std::find_if(digests.begin(), digests.end(),
                                  [&](const auto& one) { return one != digests.front(); });
  if (other == digests.end()) return;
  const auto texts = together(ranks, "initialize", [&] { return text; });
  const auto rank = static_cast<std::size_t>(other - digests.begin());
  const auto [of_first, of_other] = first_difference(texts.front(), texts[rank]);
  throw Error("initialize",
              fmt::format("expected one {} on all ranks, got {} on rank {} and {} on rank {}. Give "
                          "every rank the same.",
                          what, of_first, ranks.name_of(0), of_other,
                          ranks.name_of(static_cast<int64_t>(rank))));
}

}  // namespace

void require_same_start(const std::vector<ParameterGroup>& groups, const EngineConfig& config,
                        const comm::Mesh& mesh) {
  require_same(*mesh.world(), "configuration", values_of(config));
  require_same(*mesh.zero(), "model and optimizer", lines_of(groups));
}

}  // namespace equigrad::core
