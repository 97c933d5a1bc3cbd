// FolderIndex: index.html of a report's folder, which links the pages that other commands leave
// there, and that of the judge where its folder lies beside.
//
// index.html is the page of the last run of cases; until there is one, a page of links alone.
//
// Invariants: a link leads to a page that is there; of a page no more is shown than its heading, as
// text.
// Units: none.
// Errors: std::runtime_error where index.html cannot be written.
// Depends on: reports/history.hpp; document.hpp (sources only).
#pragma once

#include <string>
#include <vector>

#include "reports/history.hpp"

namespace equigrad::reports {

struct LinkedPage {
  std::string file;          // beside index.html: faults.html
  std::string name;          // Faults
  std::string heading_html;  // without a tag: ✓ Held
};

// What is in a report's folder beside the run's own files.
struct Surroundings {
  std::vector<PastRun> earlier;  // without this run
  std::vector<LinkedPage> pages;
};
Surroundings surroundings_of(const std::string& folder);

// For whoever wrote a page into the folder: index.html's links are made anew, and nothing else of
// it; where there is none, one is written.
void link_pages(const std::string& folder);

// What pages begin with: links of an index to the others, and theirs to the index.
std::string links_html(const std::vector<LinkedPage>& pages);
std::string link_to_index();

}  // namespace equigrad::reports
