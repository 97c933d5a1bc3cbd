#include "conformance/cli/made_with.hpp"

#include <nlohmann/json.hpp>

#include "conformance/cli/report_folder.hpp"

namespace equigrad::conformance::cli {
namespace {

// The words of a line as shell_word() writes them: plain, or between single quotes.
std::vector<std::string> words_of_line(const std::string& line) {
  std::vector<std::string> words;
  bool is_quoted = false, is_open = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    const bool ends = c == ' ' && !is_quoted;
    if (ends || !is_open) {
      is_open = !ends;
      if (ends) continue;
      words.emplace_back();
    }
    if (c == '\'')
      is_quoted = !is_quoted;
    else if (c == '\\' && !is_quoted && i + 1 < line.size())
      words.back() += line[++i];
    else
      words.back() += c;
  }
  return words;
}

std::string value_of(const std::vector<std::string>& words, const std::string& option) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == option && i + 1 < words.size()) return words[i + 1];
    if (words[i].starts_with(option + "=")) return words[i].substr(option.size() + 1);
  }
  return {};
}

bool is_same_json(const std::string& a, const std::string& b) {
  const auto parsed = [](const std::string& text) {
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  };
  return a == b || (!parsed(a).is_discarded() && parsed(a) == parsed(b));
}

}  // namespace

bool MadeWith::operator==(const MadeWith& other) const {
  return fault == other.fault && model == other.model && device == other.device &&
         is_same_json(knobs, other.knobs);
}

MadeWith made_with(const std::string& line) {
  const auto words = words_of_line(line);
  if (words.size() < 2 || words[1] != "run") return {};
  const auto device = value_of(words, "--device");
  return {value_of(words, "--fault"), value_of(words, "--knobs"), value_of(words, "--model"),
          device == "cpu" ? "" : device};
}

std::vector<MadeWith> made_with(const reports::Run& run) {
  std::vector<MadeWith> all;
  for (const auto& line : run.merged_commands) all.push_back(made_with(line));
  if (all.empty()) all.push_back(made_with(run.command));
  return all;
}

std::string words_of(const MadeWith& made) {
  std::string words;
  if (!made.fault.empty()) words += " --fault " + shell_word(made.fault);
  if (!made.knobs.empty()) words += " --knobs " + shell_word(made.knobs);
  if (!made.model.empty()) words += " --model " + shell_word(made.model);
  if (!made.device.empty()) words += " --device " + made.device;
  return words;
}

}  // namespace equigrad::conformance::cli
