#include "reports/folder_index.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "reports/document.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 6> kPages = {
    {{"faults.html", "Faults"},
     {"crash.html", "Crash"},
     {"compare.html", "Compare"},
     {"race.html", "Race"},
     {"memory.html", "Memory"},
     {"../judge-report/index.html", "Judge"}}};
constexpr const char* kBegin = "<nav class=\"reports\"";
constexpr const char* kEnd = "</nav>\n";
constexpr std::size_t kBeginBytes = 64'000;  // of a page, which has its heading there

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string begin_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kBeginBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// The text of its h1, as it stands there but for the tags.
std::string heading_of(const std::string& page) {
  constexpr std::size_t kMostBytes = 80;
  const auto begin = page.find("<h1>"), end = page.find("</h1>");
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  std::string text;
  bool in_tag = false;
  for (const char c : page.substr(begin + 4, end - begin - 4)) {
    if (c != '<' && c != '>' && !in_tag) text += c;
    in_tag = c == '<' || (in_tag && c != '>');
  }
  return text.size() > kMostBytes ? "" : clean(text);
}

std::string navigation(const std::string& links, const char* attributes = "") {
  return std::string(kBegin) + " aria-label=\"Reports\"" + attributes + ">" + links + kEnd;
}

std::vector<LinkedPage> pages_of(const std::string& folder) {
  std::vector<LinkedPage> pages;
  for (const auto& [file, name] : kPages) {
    const std::string page = begin_of(folder + "/" + file);
    if (!page.empty()) pages.push_back({file, name, heading_of(page)});
  }
  return pages;
}

std::string with_links(const std::string& index, const std::vector<LinkedPage>& pages) {
  const auto begin = index.find(kBegin);
  const auto end = begin == std::string::npos ? begin : index.find(kEnd, begin);
  if (end == std::string::npos) return index;  // a page of somebody else's, or of an older program
  return index.substr(0, begin) + links_html(pages) + index.substr(end + std::strlen(kEnd));
}

std::string page_of_links(const std::vector<LinkedPage>& pages) {
  return filled("page.html",
                {{"title", "Equigrad reports"},
                 {"style", filled("page.css")},
                 {"tone", "plain"},
                 {"reports", links_html(pages)},
                 {"brand", "Equigrad"},
                 {"time", "no run of cases yet"},
                 {"heading", "Reports"},
                 {"summary", paragraph("The pages of this folder are above. <code>equigrad "
                                       "run</code> into it puts its own in this one's place.")},
                 {"navigation", ""},
                 {"main", ""},
                 {"version", EQUIGRAD_VERSION},
                 {"data_file", "the JSON files beside the pages"},
                 {"script", ""}});
}

}  // namespace

std::string links_html(const std::vector<LinkedPage>& pages) {
  std::string links = "<span>Reports:</span>";
  bool has_none = true;
  for (const LinkedPage& page : pages) {
    if (!is_plain_path(page.file)) continue;
    has_none = false;
    links += "<a href=\"" + page.file + "\">" + escape_xml(page.name) +
             (page.heading_html.empty() ? "" : " <span>" + page.heading_html + "</span>") + "</a>";
  }
  return navigation(links, has_none ? " hidden" : "");
}

std::string link_to_index() { return navigation("<a href=\"index.html\">All reports</a>"); }

Surroundings surroundings_of(const std::string& folder) {
  return {read_history(text_of(folder + "/history.jsonl")), pages_of(folder)};
}

void link_pages(const std::string& folder) {
  const std::string place = folder + "/index.html", fresh = place + ".new";
  const std::string before = text_of(place);
  const auto pages = pages_of(folder);
  const std::string after = before.empty() ? page_of_links(pages) : with_links(before, pages);
  if (after == before) return;
  std::ofstream file(fresh, std::ios::binary);
  file << after;
  file.close();
  // In one go, so that no reader meets half of it.
  if (!file || std::rename(fresh.c_str(), place.c_str()) != 0)
    throw std::runtime_error("[report] expected to write " + place +
                             ", got: " + std::strerror(errno) + ". Choose another place.");
}

}  // namespace equigrad::reports
