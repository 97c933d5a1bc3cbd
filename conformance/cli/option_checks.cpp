#include "conformance/cli/option_checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <vector>

#include "engine/config/suggest.hpp"

namespace equigrad::conformance::cli {
namespace {

std::string wanted(const std::string& what, const std::string& text) {
  return "expected " + what + ", got \"" + text + "\"";
}

// A number and how many of its text's characters it takes; 0 where it is none.
std::size_t read_number(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return std::isfinite(value) ? static_cast<std::size_t>(end - text.c_str()) : 0;
}

// Of a text that is a number and nothing else.
std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const bool is_number = !text.empty() && read_number(text, value) == text.size();
  return is_number ? std::optional(value) : std::nullopt;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

std::string no_command(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const auto names = command_names(*at);
    if (names.empty() || argv[i][0] == '-') return "";
    if (std::find(names.begin(), names.end(), argv[i]) != names.end()) {
      at = at->get_subcommand(argv[i]);
      continue;
    }
    if (at == &app && std::string(argv[i]) == "check")
      return "a model of your own is checked by equigrad run --model libmine.so, or by "
             "equigrad.check in Python: docs/check.md.";
    return "expected a command, got \"" + std::string(argv[i]) + "\": " + listed(names) + ".";
  }
  const auto names = command_names(*at);
  return names.empty() ? "" : "expected a command, got none: " + listed(names) + ".";
}

std::string meant(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (word.starts_with("--") && word.size() > 2) {
      const auto names = option_names(*at);
      if (at->get_option_no_throw(word) == nullptr) return did_you_mean(word, names);
    } else if (const auto names = command_names(*at); !names.empty()) {
      if (std::find(names.begin(), names.end(), word) == names.end())
        return did_you_mean(word, names);
      at = at->get_subcommand(word);
    }
  }
  return "";
}

// Whether a FILTER stands behind the values of a list, which takes it for one of them.
bool list_takes_a_filter(const std::string& complaint, int argc, const char* const* argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const bool is_list = word == "--stages" || word == "--dtypes" || word == "--world";
    if (!is_list || !complaint.starts_with(word + ": ")) continue;
    return i + 2 < argc && argv[i + 1][0] != '-' && argv[i + 2][0] != '-';
  }
  return false;
}

}  // namespace

CLI::Validator at_least(int64_t least) {
  const auto words = "at least " + std::to_string(least);
  return CLI::Validator(
      [=](std::string& text) {
        int64_t value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        return is_number && value >= least ? "" : wanted("a whole number of " + words, text);
      },
      words);
}

CLI::Validator between(int64_t least, int64_t most) {
  const auto words = std::to_string(least) + " to " + std::to_string(most);
  return CLI::Validator(
      [=](std::string& text) {
        int64_t value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        return is_number && value >= least && value <= most
                   ? ""
                   : wanted("a whole number from " + words, text);
      },
      words);
}

CLI::Validator above_zero() {
  return CLI::Validator(
      [](std::string& text) {
        const auto value = number_in(text);
        return value && *value > 0 ? "" : wanted("a number above 0", text);
      },
      "above 0");
}

CLI::Validator not_negative() {
  return CLI::Validator(
      [](std::string& text) {
        const auto value = number_in(text);
        return value && *value >= 0 ? "" : wanted("a number of at least 0", text);
      },
      "at least 0");
}

CLI::Validator counted(int64_t most) {
  return CLI::Validator(
      [most](std::string& text) {
        static const std::map<std::string, double> suffixes = {
            {"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}};
        double value = 0;
        const auto length = read_number(text, value);
        const auto suffix = suffixes.find(text.substr(length));
        if (length > 0 && suffix != suffixes.end()) value *= suffix->second;
        const bool is_count = length > 0 && suffix != suffixes.end() && value >= 0 &&
                              value <= static_cast<double>(most) && value == std::floor(value);
        if (!is_count)
          return wanted("a whole number up to " + std::to_string(most) +
                            ", such as 350000000, 7e9, 350M or 7B",
                        text);
        text = std::to_string(static_cast<int64_t>(value));
        return std::string();
      },
      "such as 7e9 or 7B");
}

bool names_a_command(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return true;
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  return std::any_of(commands.begin(), commands.end(),
                     [&](const CLI::App* one) { return one->check_name(argv[1]); });
}

std::string hint(const CLI::App& app, const std::string& name, const std::string& complaint,
                 int argc, const char* const* argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if ((command == "run" || command == "list") && list_takes_a_filter(complaint, argc, argv))
    return "A FILTER stands before such a list, or behind --: its values are one word, 2,3 or "
           "fp32,bf16.\n";
  const auto nearest = command == "check" ? "" : meant(app, argc, argv);
  if (!nearest.empty()) return name + ":" + nearest + "\n";
  const auto other = no_command(app, argc, argv);
  return other.empty() ? "" : name + ": " + other + "\n";
}

int annotated(int code) {
  if (code == 2 && std::getenv("GITHUB_ACTIONS") != nullptr)
    std::cerr
        << "::error title=equigrad::Wrong words, a wrong file or a model that cannot be checked, "
           "exit code 2: the lines above say which.\n";
  return code;
}

}  // namespace equigrad::conformance::cli
