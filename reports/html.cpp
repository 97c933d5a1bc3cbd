#include "reports/html.hpp"

#include <set>

#include "reports/contract.hpp"
#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/text.hpp"
#include "reports/underflow.hpp"

namespace equigrad::reports {

std::string to_html(const Run& run) {
  constexpr size_t kFailureBytes = 100'000;
  // The list of cases has the first claim on the page; what it leaves goes to failures in full.
  const size_t listed_bytes = 100 * run.cases.size();
  const size_t failure_bytes =
      listed_bytes < kPageBytes / 2 - kFailureBytes ? kPageBytes / 2 - listed_bytes : kFailureBytes;
  constexpr size_t kMarginBytes = 10'000;  // closing tags and the lines that say what was left out
  const Outcome end = outcome(run);
  const std::string heading = capitalised(word(end));
  Document page{.origin = {run.environment, run.command, run.seed, run.wall_s},
                .brand = "Equigrad conformance run",
                .tone = word(end),
                .mark = mark_of(end == Outcome::Held, end == Outcome::Inconclusive),
                .heading = heading,
                .title = "Equigrad: " + std::string(word(end)) + ", " + counts_text(counts(run)),
                .banner_html = page_banner(run),
                .links = {{"matrix", "Matrix"},
                          {"failures", "Failures"},
                          {"contract", "Contract"},
                          {"claims", "Claims"},
                          {"self-checks", "Self-checks"},
                          {"memory", "Memory"},
                          {"underflow", "Underflow"},
                          {"not-run", "Not run"},
                          {"cases", "Cases"},
                          {"environment", "Environment"},
                          {"definitions", "Definitions"}},
                .end_html = section("definitions", "Definitions", filled("definitions.html")),
                .data_file = "run.json"};
  std::set<const Case*> shown;
  page.html = page_matrix(run) + page_failures(run, failure_bytes, shown) + page_contract(run) +
              page_claims(run) + page_self_checks(run) + page_memory(run) + page_underflow(run) +
              page_not_run(run);
  const size_t used = to_html(page).size() + kMarginBytes;
  page.html += page_cases(run, used < kPageBytes ? kPageBytes - used : 0, shown);
  return to_html(page);
}

}  // namespace equigrad::reports
