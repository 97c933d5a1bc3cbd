#include "conformance/contract/reading/texts.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace equigrad::conformance::contract {
namespace {

std::string line_of(const Setting& setting) {
  constexpr const char* kOrigins[] = {"file", "default", "derived", "no effect"};
  return setting.key + " = " + setting.value + " (" + kOrigins[static_cast<int>(setting.origin)] +
         ")" + (setting.note.empty() ? "" : " " + setting.note);
}

std::multiset<std::string> lines_of(const EffectiveConfig& effective) {
  std::multiset<std::string> lines;
  for (const auto& setting : effective.settings) lines.insert(line_of(setting));
  return lines;
}

using SomeLines = std::multiset<std::string>;
SomeLines without(const SomeLines& some, const SomeLines& others) {
  SomeLines rest;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

}  // namespace

std::string text_of_keys(const std::vector<Key>& keys) {
  std::vector<std::string> heads;
  std::map<std::string, std::vector<Key>> below;
  for (const auto& key : keys) {
    const auto dot = key.path.find('.');
    const auto head = key.path.substr(0, dot);
    if (!below.contains(head)) heads.push_back(head);
    below[head].push_back({dot == std::string::npos ? "" : key.path.substr(dot + 1), key.value});
  }
  std::string text;
  for (const auto& head : heads) {
    const auto& inner = below[head];
    text += (text.empty() ? "\"" : ", \"") + head +
            "\": " + (inner.front().path.empty() ? inner.front().value : text_of_keys(inner));
  }
  return "{" + text + "}";
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<Key> keys_of(const std::string& text) {
  std::vector<Key> keys;
  for (const auto& word : words(text)) {
    const auto equals = word.find('=');
    keys.push_back({word.substr(0, equals), word.substr(equals + 1)});
  }
  return keys;
}

std::vector<Key> with_keys(std::vector<Key> keys, const std::vector<Key>& more) {
  for (const auto& key : more) {
    const auto same = std::find_if(keys.begin(), keys.end(),
                                   [&](const Key& one) { return one.path == key.path; });
    if (same == keys.end())
      keys.push_back(key);
    else
      *same = key;
  }
  return keys;
}

std::vector<Key> usual_keys(const std::string& optimizer) {
  return {{"train_micro_batch_size_per_gpu", "1"}, {"optimizer.type", "\"" + optimizer + "\""}};
}

std::vector<std::string> problems_of(const std::string& text, int world) {
  try {
    (void)explain_config(text, world);
    return {};
  } catch (const ConfigError& error) {
    return error.problems();
  }
}

void check_problems(Play& play, const std::string& text, std::vector<std::string> wanted) {
  const auto problems = problems_of(text, play.context().world);
  if (play.fault()) wanted.emplace_back("a problem that no text has");
  const SomeLines want(wanted.begin(), wanted.end()), got(problems.begin(), problems.end());
  for (const auto& one : without(want, got)) play.check("it is refused: " + one, false);
  for (const auto& one : without(got, want)) play.check("it is not refused: " + one, false);
  play.check("every key that is wrong is refused by its name, and no other", want == got);
}

void check_relations(Play& play, const std::vector<Relation>& all) {
  for (const auto& one : all)
    check_problems(play, text_of_keys(with_keys(usual_keys(one.optimizer), keys_of(one.keys))),
                   one.problems);
}

void check_told(Play& play, const std::vector<Key>& usual, const Told& told) {
  const int world = play.context().world;
  const auto before = explain_config(text_of_keys(usual), world);
  const auto text = text_of_keys(with_keys(usual, keys_of(told.keys)));
  const auto problems = problems_of(text, world);
  for (const auto& one : problems) play.check(text + " is read, not refused: " + one, false);
  if (!problems.empty()) return;
  const auto after = explain_config(text, world);
  SomeLines want(told.lines.begin(), told.lines.end()), got;
  if (play.fault()) want.insert("a line that no text has");
  const auto old = lines_of(before), now = lines_of(after);
  for (const auto& line : without(now, old)) got.insert(line);
  std::set<std::string> still;
  for (const auto& setting : after.settings) still.insert(setting.key);
  for (const auto& setting : before.settings)
    if (!still.contains(setting.key)) got.insert("-" + setting.key);
  for (const auto& line : without(want, got)) play.check("it is said: " + line, false);
  for (const auto& line : without(got, want)) play.check("it is not said: " + line, false);
  play.check("what a text changes is said, and nothing else", want == got);
  auto config = before.config;
  told.make(config);
  play.check(text + " is read as what it says", after.config == config);
}

}  // namespace equigrad::conformance::contract
