#include "conformance/cli/completion.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::conformance::cli {
namespace {

using Strings = std::vector<std::string>;

struct KnownOption {
  Strings names;         // --seed, -q
  bool takes = false;    // a value behind it
  bool is_list = false;  // of values with commas between them
  Strings values;        // empty: any, a file's name for instance
  std::string words;
};

struct KnownCommand {
  std::string path;  // " config check"; empty: the program
  std::string words;
  std::vector<const CLI::App*> commands;
  std::vector<KnownOption> options;
  Strings values;  // of words that are no options
};

std::string joined_by(const Strings& words, const char* between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// What the parser's own checks allow: TEXT:{a,b} and INT in [0 - 3].
Strings values_of(const std::string& type) {
  Strings values;
  const auto open = type.find('{');
  if (open != std::string::npos) {
    values.emplace_back();
    for (const char c : type.substr(open + 1, type.find('}') - open - 1)) {
      if (c == ',')
        values.emplace_back();
      else
        values.back() += c;
    }
    return values;
  }
  constexpr int kMost = 16;  // numbers that are worth listing
  int least = 0, most = 0;
  const auto range = type.find("INT in [");
  if (range != std::string::npos &&
      std::sscanf(type.c_str() + range, "INT in [%d - %d]", &least, &most) == 2 &&
      most - least < kMost)
    for (int i = least; i <= most; ++i) values.push_back(std::to_string(i));
  return values;
}

// Of an option by this path: what its checks list, or what is given.
Strings values_at(const CLI::Option& option, const std::string& path, const OtherWords& others) {
  const auto listed = values_of(option.get_type_name());
  const auto given = others.values.find(path);
  return listed.empty() && given != others.values.end() ? given->second : listed;
}

KnownOption known(const CLI::Option& option, const std::string& path, const OtherWords& others) {
  KnownOption known{.takes = option.get_items_expected_max() > 0,
                    .is_list = option.get_delimiter() == ',',
                    .words = option.get_description()};
  for (const auto& name : option.get_lnames()) known.names.push_back("--" + name);
  for (const auto& name : option.get_snames()) known.names.push_back("-" + name);
  if (known.takes) known.values = values_at(option, path + " " + known.names.at(0), others);
  return known;
}

// The command and all below it.
void add_known(const CLI::App& tree, const std::string& path, const OtherWords& others,
               std::vector<KnownCommand>& all) {
  const auto other = others.programs.find(path);
  const CLI::App& app = other == others.programs.end() ? tree : *other->second;
  KnownCommand command{.path = path, .words = tree.get_description()};
  for (const auto* option : app.get_options()) {
    if (!option->get_positional()) {
      command.options.push_back(known(*option, path, others));
      continue;
    }
    const auto values = values_at(*option, path + " " + option->get_name(true), others);
    command.values.insert(command.values.end(), values.begin(), values.end());
  }
  command.commands = app.get_subcommands([](const CLI::App*) { return true; });
  const auto below = command.commands;
  all.push_back(std::move(command));
  for (const auto* one : below) add_known(*one, path + " " + one->get_name(), others, all);
}

// 'it' for a shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string words_of_command(const KnownCommand& command) {
  Strings words = command.values;
  for (const auto* one : command.commands) words.push_back(one->get_name());
  for (const auto& option : command.options)
    words.insert(words.end(), option.names.begin(), option.names.end());
  return joined_by(words, " ");
}

// Lines of a `case`: a pattern for each text, and what is done.
std::string branch(const std::string& pattern, const std::string& action) {
  return "    " + pattern + ") " + action + " ;;\n";
}

std::string patterns_of_paths(const std::vector<KnownCommand>& all) {
  Strings paths;
  for (const auto& command : all)
    if (!command.path.empty()) paths.push_back(shell_quoted(command.path));
  return joined_by(paths, "|");
}

std::string patterns_of(const KnownCommand& command, const KnownOption& option) {
  Strings patterns;
  for (const auto& name : option.names) patterns.push_back(shell_quoted(command.path + " " + name));
  return joined_by(patterns, "|");
}

// A `case` over "command option" and one over "command", with what each shell
// does in them.
struct Actions {
  std::function<std::string(const KnownOption&)> value;
  std::function<std::string(const KnownCommand&)> words;
};

std::string branches_of(const std::vector<KnownCommand>& all, const std::string& before,
                        const Actions& actions) {
  std::string values, words;
  for (const auto& command : all) {
    for (const auto& option : command.options)
      if (option.takes) values += branch(patterns_of(command, option), actions.value(option));
    words += branch(shell_quoted(command.path), actions.words(command));
  }
  return "  case \"$at " + before + "\" in\n" + values + "  esac\n  case \"$at\" in\n" + words +
         "  esac\n";
}

std::string for_bash(const std::vector<KnownCommand>& all) {
  const Actions actions{[](const KnownOption& option) {
                          if (option.values.empty())
                            return std::string("COMPREPLY=($(compgen -f -- \"$word\")); return");
                          const std::string list = option.is_list ? "\"${word##*,}\"" : "\"$word\"";
                          std::string action = "COMPREPLY=($(compgen -W " +
                                               shell_quoted(joined_by(option.values, " ")) +
                                               " -- " + list + "))";
                          if (option.is_list)
                            action +=
                                "; [[ $word != *,* ]] || "
                                "COMPREPLY=(\"${COMPREPLY[@]/#/${word%,*},}\")";
                          return action + "; return";
                        },
                        [](const KnownCommand& command) {
                          return "COMPREPLY=($(compgen -W " +
                                 shell_quoted(words_of_command(command)) + " -- \"$word\"))";
                        }};
  return "# equigrad completion bash: eval \"$(equigrad completion bash)\"\n"
         "_equigrad() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} at= i\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case \"$at ${COMP_WORDS[i]}\" in\n      " +
         patterns_of_paths(all) +
         ") at=\"$at ${COMP_WORDS[i]}\" ;;\n"
         "    esac\n"
         "  done\n" +
         branches_of(all, "${COMP_WORDS[COMP_CWORD-1]}", actions) +
         "  [[ $word == -* || ${#COMPREPLY[@]} -gt 0 ]] || "
         "COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "}\n"
         "complete -o filenames -F _equigrad equigrad\n";
}

std::string for_zsh(const std::vector<KnownCommand>& all) {
  const Actions actions{
      [](const KnownOption& option) {
        if (option.values.empty()) return std::string("_files; return");
        return std::string(option.is_list ? "compset -P '*,'; " : "") + "compadd -- " +
               joined_by(option.values, " ") + "; return";
      },
      [](const KnownCommand& command) { return "compadd -- " + words_of_command(command); }};
  return "#compdef equigrad\n"
         "# equigrad completion zsh: eval \"$(equigrad completion zsh)\"\n"
         "_equigrad() {\n"
         "  local at= i\n"
         "  for ((i = 2; i < CURRENT; i++)); do\n"
         "    case \"$at ${words[i]}\" in\n      " +
         patterns_of_paths(all) +
         ") at=\"$at ${words[i]}\" ;;\n"
         "    esac\n"
         "  done\n" +
         branches_of(all, "${words[CURRENT-1]}", actions) +
         "  _files\n"
         "}\n"
         "if [[ $funcstack[1] == _equigrad ]]; then _equigrad \"$@\"; "
         "else compdef _equigrad equigrad; fi\n";
}

std::string for_fish(const std::vector<KnownCommand>& all) {
  std::string text =
      "# equigrad completion fish | source\n"
      "function __equigrad_at\n"
      "  set -l at ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    switch \"$at $word\"\n"
      "      case";
  for (const auto& command : all)
    if (!command.path.empty()) text += " " + shell_quoted(command.path);
  text +=
      "\n        set at \"$at $word\"\n    end\n  end\n  test \"$at\" = "
      "\"$argv[1]\"\nend\n";
  for (const auto& command : all) {
    const std::string line =
        "complete -c equigrad -n " + shell_quoted("__equigrad_at " + shell_quoted(command.path));
    for (const auto* one : command.commands)
      text += line + " -f -a " + shell_quoted(one->get_name()) + " -d " +
              shell_quoted(one->get_description()) + "\n";
    if (!command.values.empty())
      text += line + " -f -a " + shell_quoted(joined_by(command.values, " ")) + "\n";
    for (const auto& option : command.options) {
      text += line;
      for (const auto& name : option.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (option.takes) text += option.values.empty() ? " -r" : " -x";
      if (!option.values.empty()) text += " -a " + shell_quoted(joined_by(option.values, " "));
      text += " -d " + shell_quoted(option.words) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string completion(const CLI::App& app, const std::string& shell, const OtherWords& others) {
  std::vector<KnownCommand> all;
  add_known(app, "", others, all);
  if (shell == "bash") return for_bash(all);
  if (shell == "zsh") return for_zsh(all);
  if (shell == "fish") return for_fish(all);
  throw Error("completion", "expected bash, zsh or fish, got \"" + shell + "\". Choose one.");
}

}  // namespace equigrad::conformance::cli
