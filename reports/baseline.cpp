#include "reports/baseline.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "reports/causes.hpp"
#include "reports/json_text.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {

template <>
inline constexpr auto kFields<KnownCase> = std::tuple(Field{"id", &KnownCase::id},
                                                      Field{"verdict", &KnownCase::verdict},
                                                      Field{"cause", &KnownCase::cause});

template <>
inline constexpr auto kFields<Acceptance> = std::tuple(Field{"time", &Acceptance::time},
                                                       Field{"commit", &Acceptance::commit},
                                                       Field{"reason", &Acceptance::reason},
                                                       Field{"taken_in", &Acceptance::taken_in},
                                                       Field{"taken_out", &Acceptance::taken_out});

template <>
inline constexpr auto kFields<Baseline> = std::tuple(Field{"schema_version",
                                                           &Baseline::schema_version},
                                                     Field{"accepted", &Baseline::accepted},
                                                     Field{"cases", &Baseline::cases});

namespace {

constexpr std::size_t kListed = 20;

// Where no cause is known, all of the place that was wrong first: what is wrong elsewhere is new.
KnownCase known_of(const Case& one) {
  const auto message = message_of(one);
  const bool has_cause = !cause_in(message).empty() || one.verdict != Verdict::Failed;
  return {one.id, one.verdict,
          has_cause ? without_numbers(clean(cause_of(one))) : clean(first_line(message))};
}

bool is_as_accepted(const KnownCase& known, const Case& one) {
  const auto now = known_of(one);
  return known.verdict == now.verdict && known.cause == now.cause;
}

const KnownCase* find(const Baseline& baseline, const std::string& id) {
  const auto& cases = baseline.cases;
  const auto found =
      std::lower_bound(cases.begin(), cases.end(), id,
                       [](const KnownCase& one, const std::string& of) { return one.id < of; });
  return found != cases.end() && found->id == id ? &*found : nullptr;
}

void check(const Baseline& baseline) {
  for (std::size_t i = 1; i < baseline.cases.size(); ++i)
    if (!(baseline.cases[i - 1].id < baseline.cases[i].id))
      throw std::runtime_error("expected cases in order of their ids, each once, got \"" +
                               baseline.cases[i].id + "\" behind \"" + baseline.cases[i - 1].id +
                               "\"");
  for (const auto& one : baseline.cases)
    if (!went_wrong(one.verdict))
      throw std::runtime_error("expected failed, crashed or timed_out of \"" + one.id +
                               "\", got \"" + std::string(word(one.verdict)) + "\"");
}

template <class Cases, class Words>
std::string listed(const Cases& cases, const Words& words) {
  std::string text;
  for (std::size_t i = 0; i < std::min(cases.size(), kListed); ++i)
    text += "  " + words(*cases[i]) + "\n";
  if (cases.size() > kListed) text += "  and " + grouped(cases.size() - kListed) + " more\n";
  return text;
}

}  // namespace

Baseline baseline_from_json(const std::string& text) {
  try {
    const auto json = Json::parse(text);
    int version = 0;
    read(json.at("schema_version"), version);
    if (version != Baseline{}.schema_version)
      throw std::runtime_error("schema_version " + std::to_string(version));
    auto baseline = json.get<Baseline>();
    check(baseline);
    return baseline;
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("[reports.baseline] expected a baseline, got: ") +
                             error.what() + ". `equigrad baseline update` writes one.");
  }
}

std::string to_json(const Baseline& baseline) { return indented_lines(Json(baseline)); }

BesideBaseline beside(const Baseline& baseline, const Run& run) {
  BesideBaseline found;
  for (const auto& one : run.cases) {
    const auto* known = find(baseline, one.id);
    if (went_wrong(one.verdict))
      (known != nullptr && is_as_accepted(*known, one) ? found.known : found.fresh).push_back(&one);
    else if (known != nullptr && passed(one.verdict) && !vacuous(one))
      found.mended.push_back(known);
  }
  return found;
}

Run with_known(Run run, const Baseline& baseline) {
  const std::string reason =
      baseline.accepted.empty() ? "" : " (" + clean(baseline.accepted.back().reason) + ")";
  for (auto& one : run.cases) {
    const auto* known = find(baseline, one.id);
    if (known == nullptr || !went_wrong(one.verdict) || !is_as_accepted(*known, one)) continue;
    one.message = "known to be wrong" + reason + ": " + one.message;
    one.verdict = Verdict::Skipped;
  }
  return run;
}

Baseline updated(const Baseline& baseline, const Run& run, const std::string& reason) {
  std::map<std::string, KnownCase> cases;
  for (const auto& one : baseline.cases) cases[one.id] = one;
  Acceptance acceptance{run.environment.time, run.environment.commit, reason};
  for (const auto& one : run.cases) {
    const auto known = cases.find(one.id);
    if (went_wrong(one.verdict)) {
      if (known != cases.end() && is_as_accepted(known->second, one)) continue;
      cases[one.id] = known_of(one);
      ++acceptance.taken_in;
    } else if (known != cases.end() && passed(one.verdict) && !vacuous(one)) {
      cases.erase(known);
      ++acceptance.taken_out;
    }
  }
  Baseline next{.accepted = baseline.accepted};
  next.accepted.push_back(std::move(acceptance));
  for (auto& [id, one] : cases) next.cases.push_back(std::move(one));
  return next;
}

std::string to_text(const Baseline& baseline) {
  std::string text = count_of(baseline.cases.size(), "case") + " known to be wrong\n";
  for (const auto& one : baseline.cases)
    text += "  " + spoken(one.verdict) + "  " + clean(one.id) + "\n    " +
            replaced(clean(one.cause), {{'#', "N"}}) + "\n";
  for (const auto& one : baseline.accepted)
    text += clean(one.time) + "  commit " + clean(one.commit) + "  " + grouped(one.taken_in) +
            " in, " + grouped(one.taken_out) + " out: " + clean(one.reason) + "\n";
  return text;
}

std::string to_text(const BesideBaseline& found, const std::string& file) {
  std::string text;
  if (!found.fresh.empty())
    text += "newly wrong: " + count_of(found.fresh.size(), "case") + "\n" +
            listed(found.fresh, [](const Case& one) { return headline(one); });
  if (!found.mended.empty())
    text += "hold now: " + count_of(found.mended.size(), "case") +
            "; equigrad baseline update REPORT --file " + clean(file) +
            " --reason \"...\" takes them out\n" +
            listed(found.mended, [](const KnownCase& one) { return clean(one.id); });
  return text + (found.fresh.empty() ? "NOTHING NEWLY WRONG  " : "NEWLY WRONG  ") +
         grouped(found.fresh.size()) + " new, " + grouped(found.known.size()) + " as accepted in " +
         clean(file) + "\n";
}

}  // namespace equigrad::reports
