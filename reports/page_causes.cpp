#include "reports/causes.hpp"
#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr size_t kMessageBytes = 6000;
constexpr size_t kCauseBytes = 300;

std::string file_link(const std::string& file) {
  return is_plain_path(file) ? "<a href=\"" + escape_xml(file) + "\">" : "";
}

// Their folder once, their names behind it. A link only where the path is plainly a relative one;
// anything else is shown as text.
std::string files_of(const Case& one) {
  constexpr size_t kFiles = 20;
  std::string out, folder;
  for (size_t i = 0; i < one.files.size() && i < kFiles; ++i) {
    const std::string& file = one.files[i];
    const size_t slash = file.rfind('/') + 1;
    if (file.substr(0, slash) != folder) {
      folder = file.substr(0, slash);
      out += (i == 0 ? "" : "; ") + ("<code>" + shown(folder, 400) + "</code> ");
    } else {
      out += ", ";
    }
    const std::string link = file_link(file);
    out += link + shown(file.substr(slash), 200) + (link.empty() ? "" : "</a>");
  }
  return out.empty() ? "" : paragraph("Files: " + out);
}

std::string lanes_table(const Case& one) {
  std::string rows;
  for (const Lane& lane : one.lanes) {
    std::string cells =
        verdict_cell(lane.verdict, lane.margin, spoken(lane.verdict)) +
        number_cells({grouped(lane.compared), grouped(lane.differing), short_number(lane.margin)});
    if (const auto& worst = lane.worst)
      cells += "<td><code>" + shown(worst->tensor, 200) + "[" + std::to_string(worst->index) +
               "]</code></td>" +
               number_cells({formatted("%.9g", worst->got), formatted("%.9g", worst->want),
                             formatted("%.3g", worst->bound), short_number(worst->ulp)});
    else
      cells += cell("–", 3) + number_cells({"–", "–", "–", "–"});
    rows += row(shown(lane.name, 60), cells);
  }
  if (rows.empty()) return {};
  return table("Lanes of this case, and the worst element of each",
               heads({"Lane", "Verdict"}) +
                   number_heads({"Compared", "Differing", "Share of bound"}) +
                   heads({"Worst element"}) + number_heads({"Got", "Want", "Bound", "ulp"}),
               rows, "stack");
}

// What one case says by itself; the pictures of a cause are its first case's.
std::string details_of(const Case& one, bool with_picture) {
  return (with_picture && one.picture ? page_picture(*one.picture) : "") + "<pre>" +
         shown(message_of(one), kMessageBytes) + "</pre>\n" + replay_html(one.replay) +
         lanes_table(one) + files_of(one);
}

std::string other_case(const Case& one) {
  return "<details id=\"" + anchor(one.id) + "\"><summary class=\"id\">" + shown(one.id, 400) +
         "</summary>\n" + details_of(one, false) + "</details>\n";
}

// Which values of each dimension its cases have.
std::string cells_of(const Run& run, const Cause& cause) {
  std::string rows;
  for (const char* name : {"stage", "precision", "ranks", "style", "model", "optimizer", "clip",
                           "accumulate", "section"}) {
    std::vector<std::string> inside;
    size_t known = 0;
    for (const auto& value : values(run, name)) {
      if (value == "-") continue;
      ++known;
      for (const Case* one : cause.cases)
        if (dimension(*one, name) == value) {
          inside.push_back(value);
          break;
        }
    }
    if (known < 2 || inside.empty()) continue;
    const std::string all = inside.size() == known ? "all " + std::to_string(known) + ": " : "";
    rows += std::string("<dt>") + name + "</dt><dd>" + all + shown(joined(inside, ", "), 600) +
            "</dd>\n";
  }
  return rows.empty() ? "" : "<dl class=\"words facts\">\n" + rows + "</dl>\n";
}

std::string tag_of(const Cause& cause) {
  const Verdict verdict = passed(cause.verdict) ? Verdict::Failed : cause.verdict;
  return glyph(verdict) + " " + (passed(cause.verdict) ? "compared nothing" : spoken(verdict));
}

std::string begin_of(const Run& run, const Cause& cause) {
  const Case& one = *cause.cases.front();
  const std::string id = anchor(one.id);
  return paragraph(escape_xml(where_text(cause))) + cells_of(run, cause) + "<p id=\"" + id + "\">" +
         (cause.cases.size() > 1 ? "For example " : "") + "<a class=\"id\" href=\"#" + id + "\">" +
         shown(one.id, 400) + "</a></p>\n" + details_of(one, true);
}

}  // namespace

std::string cause_list(const Run& run) {
  constexpr size_t kMost = 5;
  const auto found = causes(run);
  std::string items;
  for (size_t i = 0; i < found.size() && i < kMost; ++i)
    items += "<li><a href=\"#cause-" + std::to_string(i + 1) + "\">" +
             shown(found[i].text, kCauseBytes) + "</a> <span class=\"note\">" +
             shown(where_text(found[i]), 400) + "</span></li>\n";
  if (found.size() > kMost)
    items +=
        "<li><a href=\"#causes\">" + count_of(found.size() - kMost, "more cause") + "</a></li>\n";
  return items.empty() ? "" : "<ol class=\"causes\">\n" + items + "</ol>\n";
}

std::string page_causes(const Run& run, size_t budget_bytes, std::set<const Case*>& on_page) {
  const auto found = causes(run);
  if (found.empty()) return empty_section("causes", "Causes", "Nothing went wrong.");
  std::vector<std::string> begins(found.size()), others(found.size());
  size_t used = 0, wrong = 0;
  const auto fits = [&](const std::string& piece) {
    if (used + piece.size() > budget_bytes) return false;
    used += piece.size();
    return true;
  };
  for (size_t i = 0; i < found.size(); ++i) {  // of each cause one, before more of any
    std::string begin = begin_of(run, found[i]);
    if (!fits(begin)) continue;
    begins[i] = std::move(begin);
    on_page.insert(found[i].cases.front());
  }
  for (size_t i = 0; i < found.size(); ++i) {
    wrong += found[i].cases.size();
    for (const Case* one : found[i].cases) {
      if (on_page.contains(one)) continue;
      const std::string piece = other_case(*one);
      if (!fits(piece)) continue;
      others[i] += piece;
      on_page.insert(one);
    }
  }
  std::string out;
  for (size_t i = 0; i < found.size(); ++i) {
    const Verdict verdict = passed(found[i].verdict) ? Verdict::Failed : found[i].verdict;
    const size_t more = found[i].cases.size() - 1;
    if (!others[i].empty())
      begins[i] += "<details class=\"more\"><summary>" + count_of(more, "more case") +
                   " of this cause</summary>\n" + others[i] + "</details>\n";
    out += article("cause-" + std::to_string(i + 1), margin_class(verdict, 0), tag_of(found[i]),
                   shown(found[i].text, kCauseBytes), begins[i]);
  }
  if (on_page.size() < wrong)
    out += "<p>" + count_of(wrong - on_page.size(), "more case") +
           " that went wrong did not fit on this page; run.json has them all.</p>\n";
  return section("causes", count_of(found.size(), "cause"), out);
}

}  // namespace equigrad::reports
