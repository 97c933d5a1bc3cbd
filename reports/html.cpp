#include "reports/html.hpp"

#include <set>

#include "reports/contract.hpp"
#include "reports/page.hpp"
#include "reports/text.hpp"
#include "reports/underflow.hpp"

namespace equigrad::reports {
namespace {

// A small mark in the browser's tab, without a request for a file.
constexpr std::string_view kIcon =
    "<link rel=\"icon\" href=\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' "
    "viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='4' fill='%232b5fa8'/%3E%3Cpath d='M4 "
    "6h8M4 10h8' stroke='white' stroke-width='2'/%3E%3C/svg%3E\">\n";

constexpr std::string_view kNavigation =
    "<nav aria-label=\"Sections\"><a href=\"#matrix\">Matrix</a> <a "
    "href=\"#failures\">Failures</a> "
    "<a href=\"#contract\">Contract</a> <a href=\"#claims\">Claims</a> <a "
    "href=\"#self-checks\">Self-checks</a> "
    "<a href=\"#memory\">Memory</a> <a href=\"#underflow\">Underflow</a> <a href=\"#not-run\">Not "
    "run</a> <a href=\"#cases\">Cases</a> "
    "<a href=\"#environment\">Environment</a> <a href=\"#definitions\">Definitions</a></nav>\n";

std::string page_head(const Run& run) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Equigrad: " +
         std::string(word(outcome(run))) + ", " + escape_xml(counts_text(counts(run))) +
         "</title>\n" + std::string(kIcon) + "<style>" + std::string(page_style()) +
         "</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#matrix\">Skip to the matrix</a>\n";
}

}  // namespace

std::string to_html(const Run& run) {
  constexpr size_t kFailureBytes = 100'000;
  // The list of cases has the first claim on the page; what it leaves goes to failures in full.
  const size_t listed_bytes = 100 * run.cases.size();
  const size_t failure_bytes =
      listed_bytes < kPageBytes / 2 - kFailureBytes ? kPageBytes / 2 - listed_bytes : kFailureBytes;
  constexpr size_t kMarginBytes = 10'000;  // closing tags and the lines that say what was left out
  const std::string front =
      page_head(run) + page_banner(run) + std::string(kNavigation) + "<main>\n" + page_matrix(run);
  std::set<const Case*> shown;
  const std::string failures = page_failures(run, failure_bytes, shown);
  const std::string middle = page_contract(run) + page_claims(run) + page_self_checks(run) +
                             page_memory(run) + page_underflow(run) + page_not_run(run);
  const std::string back = page_environment(run) + page_definitions() +
                           "</main>\n<footer><p>Written by equigrad " +
                           escape_xml(run.environment.version) +
                           ". The same data for programs: run.json.</p></footer>\n<script>" +
                           std::string(page_script()) + "</script>\n</body>\n</html>\n";
  const size_t used = front.size() + failures.size() + middle.size() + back.size() + kMarginBytes;
  const size_t room = used < kPageBytes ? kPageBytes - used : 0;
  return front + failures + middle + page_cases(run, room, shown) + back;
}

}  // namespace equigrad::reports
