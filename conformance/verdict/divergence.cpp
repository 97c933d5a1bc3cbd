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

auto moment(const Place& place) {
  const bool in_pass = place.phase == Phase::Forward;
  return std::tuple(place.step, place.phase, in_pass ? place.micro_batch : 0);
}

// A micro-batch that is not known may be any: where most are known, those come first.
auto order(const Place& place, bool is_known) {
  const int known = place.micro_batch < 0 ? std::numeric_limits<int>::max() : place.micro_batch;
  return std::tuple(moment(place), is_known ? known : 0, place.position, place.parameter);
}

bool most_known(const std::vector<Place>& places) {
  const auto known = std::count_if(places.begin(), places.end(),
                                   [](const Place& place) { return place.micro_batch >= 0; });
  return 2 * known > static_cast<std::ptrdiff_t>(places.size());
}

nlohmann::json json_of(const Place& place) {
  return {{"phase", static_cast<int>(place.phase)},
          {"step", place.step},
          {"micro_batch", place.micro_batch},
          {"from_rank", place.from_rank},
          {"what", place.what},
          {"parameter", place.parameter},
          {"position", place.position},
          {"begin", place.begin},
          {"end", place.end},
          {"bucket", place.bucket}};
}

Place place_of(const nlohmann::json& json) {
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
std::string subject(const FirstPlace& first) {
  const auto& place = first.place;
  if (place.parameter.empty() || place.begin == place.end)
    return place.what + (place.parameter.empty() ? "" : " of " + place.parameter);
  const auto wrong = static_cast<int64_t>(first.parameters.size());
  const std::string range =
      " [" + std::to_string(place.begin) + ", " + std::to_string(place.end) + ")";
  if (wrong <= 1)
    return place.what + (place.what == "parameter" ? " " : " of ") + place.parameter + range;
  const bool is_plain =
      place.what == "gradient" || place.what == "master" || place.what == "parameter";
  const std::string many =
      wrong == first.compared
          ? "all " + std::to_string(wrong)
          : std::to_string(wrong) + " of " + std::to_string(std::max(first.compared, wrong));
  return many + (is_plain ? " " + place.what + "s" : " parameters") + ", the first " +
         (is_plain ? "" : place.what + " of ") + place.parameter + range;
}

// The number behind `word` in "step 2 micro-batch 3 backward", from 0; -1 without one.
int number_behind(const std::string& text, const std::string& word) {
  const auto at = text.find(word);
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + word.size()) - 1;
}

}  // namespace

std::string word(Phase phase) { return kWords[static_cast<int>(phase)]; }

void Trail::add(Place place) {
  if (!places_.empty() && moment(places_[0]) < moment(place)) return;
  if (!places_.empty() && moment(place) < moment(places_[0])) {
    places_.clear();
    compared_ = 0;
  }
  places_.push_back(std::move(place));
}

void Trail::tell(const std::string& parameter, int micro_batch, int from_rank) {
  for (auto& place : places_)
    if (place.parameter == parameter) {
      place.micro_batch = micro_batch;
      place.from_rank = from_rank;
    }
}

const Place& Trail::first() const {
  const bool is_known = most_known(places_);
  return *std::min_element(places_.begin(), places_.end(), [&](const Place& a, const Place& b) {
    return order(a, is_known) < order(b, is_known);
  });
}

nlohmann::json Trail::to_json() const {
  auto places = nlohmann::json::array();
  for (const auto& place : places_) places.push_back(json_of(place));
  return {{"places", places}, {"compared", compared_}};
}

std::optional<FirstPlace> first_place(const std::vector<nlohmann::json>& trails) {
  std::vector<FirstPlace> earliest;
  for (std::size_t rank = 0; rank < trails.size(); ++rank)
    for (const auto& json : trails[rank].at("places")) {
      const auto place = place_of(json);
      if (!earliest.empty() && moment(earliest[0].place) < moment(place)) continue;
      if (!earliest.empty() && moment(place) < moment(earliest[0].place)) earliest.clear();
      earliest.push_back({place, static_cast<int>(rank), {}, trails[rank].at("compared")});
    }
  if (earliest.empty()) return std::nullopt;
  std::vector<Place> places;
  std::set<std::string> names;
  for (const auto& one : earliest) {
    places.push_back(one.place);
    if (!one.place.parameter.empty()) names.insert(one.place.parameter);
  }
  const bool is_known = most_known(places);
  auto first =
      *std::min_element(earliest.begin(), earliest.end(), [&](const auto& a, const auto& b) {
        return order(a.place, is_known) < order(b.place, is_known);
      });
  first.parameters = {names.begin(), names.end()};
  return first;
}

std::string line_of(const FirstPlace& first) {
  const auto& place = first.place;
  std::string text = "  first   ";
  if (place.step >= 0) text += "step " + std::to_string(place.step + 1) + ", ";
  text += subject(first) + " on rank " + std::to_string(first.rank);
  if (place.micro_batch >= 0) text += ", micro-batch " + std::to_string(place.micro_batch + 1);
  if (place.from_rank >= 0) text += " of rank " + std::to_string(place.from_rank);
  if (place.bucket >= 0) text += ", bucket " + std::to_string(place.bucket);
  return text + "\n";
}

nlohmann::json to_json(const FirstPlace& first) {
  const auto& place = first.place;
  const bool is_phase = place.step >= 0 && !place.what.starts_with("no answer");
  return {{"phase", is_phase ? word(place.phase) : ""},
          {"step", place.step},
          {"micro_batch", place.micro_batch},
          {"parameter", place.parameter},
          {"parameters", first.parameters},
          {"rank", first.rank},
          {"from_rank", place.from_rank},
          {"begin", place.begin},
          {"end", place.end},
          {"bucket", place.bucket},
          {"what", place.what}};
}

std::optional<FirstPlace> place_of_note(int rank, const std::string& note) {
  FirstPlace first;
  first.rank = rank;
  first.place.step = number_behind(note, "step ");
  const bool is_start = note.starts_with("initialize");
  if (first.place.step < 0 && !is_start) return std::nullopt;
  first.place.micro_batch = number_behind(note, "micro-batch ");
  first.place.what = is_start ? "no answer to initialize" : "no answer";
  return first;
}

}  // namespace equigrad::conformance
