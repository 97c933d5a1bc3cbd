#include "conformance/verdict/divergence.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <tuple>

namespace equigrad::conformance {
namespace {

const char* const kWords[] = {"scale", "forward", "gradient",  "norm", "clip",
                              "scale", "update",  "parameter", "scale"};

auto moment(const Divergence& divergence) {
  const bool in_pass = divergence.phase == Phase::Forward;
  return std::tuple(divergence.step, divergence.phase, in_pass ? divergence.micro_batch : 0);
}

// A micro-batch that is not known may be any: where most are known, those come first.
auto order(const Divergence& divergence, bool is_known) {
  const int known =
      divergence.micro_batch < 0 ? std::numeric_limits<int>::max() : divergence.micro_batch;
  return std::tuple(moment(divergence), is_known ? known : 0, divergence.position,
                    divergence.parameter);
}

bool most_known(const std::vector<Divergence>& all) {
  const auto known = std::count_if(all.begin(), all.end(), [](const Divergence& divergence) {
    return divergence.micro_batch >= 0;
  });
  return 2 * known > static_cast<std::ptrdiff_t>(all.size());
}

nlohmann::json json_of(const Divergence& divergence) {
  return {{"phase", static_cast<int>(divergence.phase)},
          {"step", divergence.step},
          {"micro_batch", divergence.micro_batch},
          {"from_rank", divergence.from_rank},
          {"what", divergence.what},
          {"parameter", divergence.parameter},
          {"position", divergence.position},
          {"begin", divergence.begin},
          {"end", divergence.end},
          {"bucket", divergence.bucket}};
}

Divergence divergence_of(const nlohmann::json& json) {
  return {static_cast<Phase>(json.at("phase").get<int>()),
          json.at("step"),
          json.at("micro_batch"),
          json.at("from_rank"),
          json.at("what"),
          json.at("parameter"),
          json.at("position"),
          json.at("begin"),
          json.at("end"),
          json.at("bucket")};
}

// "all 8 gradients, the first head.bias": several parameters in one line.
std::string subject(const FirstDivergence& first) {
  const auto& divergence = first.divergence;
  if (divergence.parameter.empty() || divergence.begin == divergence.end)
    return divergence.what + (divergence.parameter.empty() ? "" : " of " + divergence.parameter);
  const auto wrong = static_cast<int64_t>(first.parameters.size());
  const std::string range =
      " [" + std::to_string(divergence.begin) + ", " + std::to_string(divergence.end) + ")";
  if (wrong <= 1)
    return divergence.what + (divergence.what == "parameter" ? " " : " of ") +
           divergence.parameter + range;
  const bool is_plain = divergence.what == "gradient" || divergence.what == "master" ||
                        divergence.what == "parameter";
  const std::string many =
      wrong == first.compared
          ? "all " + std::to_string(wrong)
          : std::to_string(wrong) + " of " + std::to_string(std::max(first.compared, wrong));
  return many + (is_plain ? " " + divergence.what + "s" : " parameters") + ", the first " +
         (is_plain ? "" : divergence.what + " of ") + divergence.parameter + range;
}

// The number behind `word` in "step 2 micro-batch 3 backward", from 0; -1 without one.
int number_behind(const std::string& text, const std::string& word) {
  const auto at = text.find(word);
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + word.size()) - 1;
}

}  // namespace

std::string word(Phase phase) { return kWords[static_cast<int>(phase)]; }

void Divergences::add(Divergence divergence) {
  if (!all_.empty() && moment(all_[0]) < moment(divergence)) return;
  if (!all_.empty() && moment(divergence) < moment(all_[0])) {
    all_.clear();
    compared_ = 0;
  }
  all_.push_back(std::move(divergence));
}

void Divergences::tell(const std::string& parameter, int micro_batch, int from_rank) {
  for (auto& divergence : all_)
    if (divergence.parameter == parameter) {
      divergence.micro_batch = micro_batch;
      divergence.from_rank = from_rank;
    }
}

const Divergence& Divergences::first() const {
  const bool is_known = most_known(all_);
  return *std::min_element(all_.begin(), all_.end(), [&](const Divergence& a, const Divergence& b) {
    return order(a, is_known) < order(b, is_known);
  });
}

nlohmann::json Divergences::to_json() const {
  auto all = nlohmann::json::array();
  for (const auto& divergence : all_) all.push_back(json_of(divergence));
  return {{"divergences", all}, {"compared", compared_}};
}

std::optional<FirstDivergence> first_divergence(const std::vector<nlohmann::json>& of_ranks) {
  std::vector<FirstDivergence> earliest;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const auto& json : of_ranks[rank].at("divergences")) {
      const auto divergence = divergence_of(json);
      if (!earliest.empty() && moment(earliest[0].divergence) < moment(divergence)) continue;
      if (!earliest.empty() && moment(divergence) < moment(earliest[0].divergence))
        earliest.clear();
      earliest.push_back({divergence, static_cast<int>(rank), {}, of_ranks[rank].at("compared")});
    }
  if (earliest.empty()) return std::nullopt;
  std::vector<Divergence> all;
  std::set<std::string> names;
  for (const auto& one : earliest) {
    all.push_back(one.divergence);
    if (!one.divergence.parameter.empty()) names.insert(one.divergence.parameter);
  }
  const bool is_known = most_known(all);
  auto first =
      *std::min_element(earliest.begin(), earliest.end(), [&](const auto& a, const auto& b) {
        return order(a.divergence, is_known) < order(b.divergence, is_known);
      });
  first.parameters = {names.begin(), names.end()};
  return first;
}

std::string line_of(const FirstDivergence& first) {
  const auto& divergence = first.divergence;
  std::string text = "  first   ";
  if (divergence.step >= 0) text += "step " + std::to_string(divergence.step + 1) + ", ";
  text += subject(first) + " on rank " + std::to_string(first.rank);
  if (divergence.micro_batch >= 0)
    text += ", micro-batch " + std::to_string(divergence.micro_batch + 1);
  if (divergence.from_rank >= 0) text += " of rank " + std::to_string(divergence.from_rank);
  if (divergence.bucket >= 0) text += ", bucket " + std::to_string(divergence.bucket);
  return text + "\n";
}

nlohmann::json to_json(const FirstDivergence& first) {
  const auto& divergence = first.divergence;
  const bool is_phase = divergence.step >= 0 && !divergence.what.starts_with("no answer");
  return {{"phase", is_phase ? word(divergence.phase) : ""},
          {"step", divergence.step},
          {"micro_batch", divergence.micro_batch},
          {"parameter", divergence.parameter},
          {"parameters", first.parameters},
          {"rank", first.rank},
          {"from_rank", divergence.from_rank},
          {"begin", divergence.begin},
          {"end", divergence.end},
          {"bucket", divergence.bucket},
          {"what", divergence.what}};
}

std::optional<FirstDivergence> divergence_of_note(int rank, const std::string& note) {
  FirstDivergence first;
  first.rank = rank;
  first.divergence.step = number_behind(note, "step ");
  const bool is_start = note.starts_with("initialize");
  if (first.divergence.step < 0 && !is_start) return std::nullopt;
  first.divergence.micro_batch = number_behind(note, "micro-batch ");
  first.divergence.what = is_start ? "no answer to initialize" : "no answer";
  return first;
}

}  // namespace equigrad::conformance
