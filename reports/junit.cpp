#include <map>
#include <sstream>

#include "reports/causes.hpp"
#include "reports/parts.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::reports {
namespace {

using Tally = std::map<std::string_view, int64_t>;  // element -> cases

class UniqueNames {
 public:
  std::string operator()(const std::string& name) {
    const int64_t seen = ++seen_[name];
    return seen == 1 ? name : (*this)(name + " (" + std::to_string(seen) + ")");
  }

 private:
  std::map<std::string, int64_t> seen_;
};

std::string cdata(const std::string& text) {
  std::string safe = clean(text);
  for (size_t at = 0; (at = safe.find("]]>", at)) != std::string::npos; at += 15) {
    safe.replace(at, 3, "]]]]><![CDATA[>");
  }
  return "<![CDATA[" + safe + "]]>";
}

// Those that the root may have, too: it has no `skipped`.
std::string attributes(Tally& tally) {
  int64_t tests = 0;
  for (const auto& [element, cases] : tally) tests += cases;
  return " tests=\"" + std::to_string(tests) + "\" failures=\"" + std::to_string(tally["failure"]) +
         "\" errors=\"" + std::to_string(tally["error"]) + "\"";
}

// Three decimals at most: readers take no more.
std::string time_of(double seconds) { return " time=\"" + formatted("%.3f", seconds) + "\""; }

// The cause of what went wrong; why a case was skipped.
std::string said_of(const Case& one) {
  const auto cause = went_wrong(one.verdict) && !vacuous(one) ? cause_of(one) : "";
  return cause.empty() ? first_line(message_of(one)) : cause;
}

// What a case has in it; nothing where it held.
std::string_view element_of(const Case& one) {
  if (vacuous(one) || one.verdict == Verdict::Failed) return "failure";
  if (went_wrong(one.verdict)) return "error";
  return passed(one.verdict) ? "" : "skipped";
}

// `folder` stands before the names of kept files.
void write_case(std::ostringstream& out, const Case& one, const std::string& name,
                const std::string& suite, const std::string& folder) {
  const std::string_view element = element_of(one);
  out << "    <testcase name=\"" << escape_xml(name) << "\" classname=\"equigrad."
      << escape_xml(suite) << "\"" << time_of(one.seconds) << (element.empty() ? "/>\n" : ">\n");
  if (element.empty()) return;
  out << "      <" << element << " message=\"" << escape_xml(said_of(one)) << "\"";
  if (element == "skipped") {
    out << "/>\n    </testcase>\n";
    return;
  }
  out << " type=\"" << (vacuous(one) ? "empty" : word(one.verdict)) << "\">"
      << cdata(message_with_replay(one)) << "</" << element << ">\n";
  std::string attachments;
  for (const std::string& file : one.files) attachments += "[[ATTACHMENT|" + folder + file + "]]\n";
  if (!attachments.empty()) out << "      <system-out>" << cdata(attachments) << "</system-out>\n";
  out << "    </testcase>\n";
}

struct Suite {
  std::string name;
  std::vector<Case> cases;
  std::string time;  // an attribute, or nothing
};

void write_suite(std::ostringstream& out, Tally& all, const Suite& suite, UniqueNames& unique,
                 const std::string& folder) {
  std::ostringstream body;
  Tally tally;
  for (const Case& one : suite.cases) {
    write_case(body, one, unique(clean(one.id)), suite.name, folder);
    ++tally[element_of(one)], ++all[element_of(one)];
  }
  out << "  <testsuite name=\"" << escape_xml(suite.name) << "\"" << attributes(tally)
      << " skipped=\"" << tally["skipped"] << "\"" << suite.time << ">\n"
      << body.str() << "  </testsuite>\n";
}

std::vector<Case> self_checks(const Run& run) {
  std::vector<Case> cases;
  for (const SelfCheck& check : run.self_checks) {
    Case& one = cases.emplace_back();
    one.id = "self_check." + clean(check.fault);
    one.verdict = check.caught ? Verdict::Equal : Verdict::Failed;
    one.lanes.resize(1);
    one.lanes[0].compared = 1;  // a planted fault is no empty comparison
    one.message = "the planted fault \"" + clean(check.fault) +
                  "\" was not caught: the run is void" +
                  (check.by.empty() ? "" : " (" + clean(check.by) + ")");
  }
  const auto add_error = [&cases](const char* id, const std::string& message) {
    Case& one = cases.emplace_back();
    one.id = id;
    one.verdict = Verdict::Crashed;
    one.message = message;
  };
  if (!run.engine_failure.empty()) {
    add_error("self_check.engine", engine_text(run));
    cases.back().verdict = Verdict::Failed;
  }
  if (!run.failure.empty()) add_error("self_check", run.failure);
  // Cases that were not run are no failures to a reader of JUnit: the run says that it is partial.
  const Outcome end = outcome(run);
  const bool is_empty = end == Outcome::Inconclusive && counts(run).compared == 0;
  if (end == Outcome::Interrupted || is_empty) add_error("run", outcome_text(run));
  return cases;
}

}  // namespace

std::string to_junit(const Run& run, const std::string& folder) {
  std::ostringstream suites;
  Tally all;
  UniqueNames unique;
  const std::string before = folder.empty() ? "" : folder + "/";
  write_suite(suites, all, {"self_check", self_checks(run), ""}, unique, before);
  for (const PartRange& range : part_ranges(run)) {
    Run part;
    part.cases.assign(run.cases.begin() + static_cast<std::ptrdiff_t>(range.begin),
                      run.cases.begin() + static_cast<std::ptrdiff_t>(range.end));
    for (const Group& group : group_by(part, {"stage", "precision", "ranks"})) {
      Suite suite{.name = (range.name.empty() ? "" : range.name + ".") + "zero" + group.key[0] +
                          "." + group.key[1] + ".w" + group.key[2],
                  .cases = {},
                  .time = time_of(group.seconds)};
      for (const Case* one : group.cases) suite.cases.push_back(*one);
      write_suite(suites, all, suite, unique, before);
    }
  }
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"equigrad\"" +
         attributes(all) + time_of(run.wall_s) + ">\n" + suites.str() + "</testsuites>\n";
}

}  // namespace equigrad::reports
