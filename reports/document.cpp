#include "reports/document.hpp"

#include <array>
#include <cmath>
#include <stdexcept>

#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string environment_section(const Origin& of) {
  const Environment& env = of.environment;
  const std::vector<std::pair<const char*, std::string>> lines = {
      {"Command", "<code>" + shown(of.command, 4000) + "</code>"},
      {"Seed", std::to_string(of.seed)},
      {"Equigrad",
       escape_xml(env.version) + ", commit <code>" + escape_xml(env.commit) + "</code>"},
      {"LibTorch", escape_xml(env.torch)},
      {"Compiler", escape_xml(env.compiler)},
      {"Device", escape_xml(env.device)},
      {"Processor", escape_xml(env.cpu) + ", " + count_of(env.cores, "core") + ", " +
                        count_of(env.threads_per_rank, "thread") + " a rank"},
      {"System", escape_xml(env.os)},
      {"Started", escape_xml(env.time)},
      {"Took", seconds_text(of.wall_s)}};
  std::string out;
  for (const auto& [term, html] : lines)
    out += std::string("<dt>") + term + "</dt><dd>" + html + "</dd>\n";
  return folded_section("environment", "Environment", escape_xml(env.version + ", " + env.commit),
                        "<dl class=\"words\">\n" + out + "</dl>\n");
}

// "Held" behind its mark.
std::string heading_of(const Document& of) {
  if (of.outcome.empty()) return of.heading;
  const bool is_good = of.outcome == "held" || of.outcome == "equivalent";
  const std::string mark = is_good ? "✓" : of.outcome == "inconclusive" ? "?" : "✗";
  std::string heading(of.outcome);
  heading[0] = upper_case(heading)[0];
  return "<span aria-hidden=\"true\">" + mark + "</span> " + heading;
}

std::string_view tone_of(std::string_view outcome) {
  if (outcome.empty() || outcome == "equivalent") return "held";
  return outcome == "different" ? "failed" : outcome;
}

std::string navigation(const Document& document) {
  if (document.links.empty()) return {};
  std::string out;
  for (const auto& [id, name] : document.links)
    out += (out.empty() ? "" : " ") + ("<a href=\"#" + id + "\">" + name + "</a>");
  return "<nav aria-label=\"Sections\">" + out + "</nav>\n";
}

}  // namespace

std::string filled(std::string_view template_name, const Values& values) {
  std::string_view rest = template_text(template_name);
  if (rest.empty()) throw std::logic_error("no template " + std::string(template_name));
  std::string out;
  for (size_t open = 0; (open = rest.find("{{")) != std::string_view::npos;) {
    const std::string_view key = rest.substr(open + 2, rest.find("}}", open) - open - 2);
    out += rest.substr(0, open);
    rest.remove_prefix(open + key.size() + 4);
    bool is_known = false;
    for (const auto& [name, value] : values) {
      if (name != key) continue;
      out += value;
      is_known = true;
    }
    if (!is_known) throw std::logic_error("no value for " + std::string(key));
  }
  return out.append(rest);
}

std::string to_html(const Document& of) {
  const Environment& env = of.origin.environment;
  return filled("page.html",
                {{"title", escape_xml(of.title.empty() ? of.brand + ": " + std::string(of.outcome)
                                                       : of.title)},
                 {"style", filled("page.css")},
                 {"tone", tone_of(of.outcome)},
                 {"reports", of.reports_html},
                 {"brand", of.brand},
                 {"time", escape_xml(env.time)},
                 {"heading", heading_of(of)},
                 {"summary", of.banner_html},
                 {"navigation", navigation(of)},
                 {"main", of.html + environment_section(of.origin) + of.end_html},
                 {"version", escape_xml(env.version)},
                 {"data_file", of.data_file},
                 {"script", filled("filter.js") + filled("page.js")}});
}

std::string shown(const std::string& text, size_t limit_bytes) {
  if (text.size() <= limit_bytes) return escape_xml(text);
  size_t end = limit_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return escape_xml(text.substr(0, end) + " [" + count_of(text.size() - end, "more byte") +
                    " in the JSON file]");
}

std::string paragraph(const std::string& html) { return "<p>" + html + "</p>\n"; }

std::string section(const std::string& id, const std::string& title, const std::string& html) {
  return "<section id=\"" + id + "\" aria-labelledby=\"" + id + "-h\">\n<h2 id=\"" + id + "-h\">" +
         title + "</h2>\n" + html + "</section>\n";
}

std::string folded_section(const std::string& id, const std::string& title,
                           const std::string& note_html, const std::string& html) {
  return "<section id=\"" + id + "\" aria-labelledby=\"" + id +
         "-h\">\n<details><summary><h2 id=\"" + id + "-h\">" + title +
         "</h2> <span class=\"note\">" + note_html + "</span></summary>\n" + html +
         "</details></section>\n";
}

std::string empty_section(const std::string& id, const std::string& title,
                          const std::string& html) {
  return "<section id=\"" + id + "\" class=\"empty\" aria-labelledby=\"" + id + "-h\">\n<h2 id=\"" +
         id + "-h\">" + title + "</h2> " + html + "</section>\n";
}

bool is_plain_path(const std::string& path) {
  return !path.empty() &&
         path.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") ==
             std::string::npos;
}

std::string article(const std::string& id, const std::string& css_class, const std::string& tag,
                    const std::string& name_html, const std::string& html) {
  return "<article id=\"" + id + "\" class=\"" + css_class + "\">\n<h3><span class=\"tag\">" + tag +
         "</span> " + name_html + "</h3>\n" + html + "</article>\n";
}

std::string replay_html(const std::string& line) {
  return line.empty() ? "" : paragraph("Replay: <code>" + shown(line, 1000) + "</code>");
}

std::string heads(const std::vector<std::string>& names_html) {
  std::string out;
  for (const std::string& name : names_html) out += "<th scope=\"col\">" + name + "</th>";
  return out;
}

std::string number_heads(const std::vector<std::string>& names_html) {
  std::string out;
  for (const std::string& name : names_html)
    out += "<th scope=\"col\" class=\"n\">" + name + "</th>";
  return out;
}

std::string table(const std::string& caption_html, const std::string& heads_html,
                  const std::string& rows_html, const std::string& css_class) {
  return "<div class=\"wide\"><table" +
         (css_class.empty() ? ">\n" : " class=\"" + css_class + "\">\n") + "<caption>" +
         caption_html + "</caption>\n<thead><tr>" + heads_html + "</tr></thead>\n<tbody>\n" +
         rows_html + "</tbody></table></div>\n";
}

std::string subtitle(size_t columns, const std::string& html, bool is_first) {
  return std::string(is_first ? "" : "</tbody>\n<tbody>\n") +
         "<tr><th class=\"sub\" scope=\"rowgroup\" colspan=\"" + std::to_string(columns) + "\">" +
         html + "</th></tr>\n";
}

std::string row(const std::string& head_html, const std::string& cells_html) {
  return "<tr><th scope=\"row\">" + head_html + "</th>" + cells_html + "</tr>\n";
}

std::string cell(const std::string& text, size_t limit_bytes) {
  return "<td>" + shown(text, limit_bytes) + "</td>";
}

std::string number_cells(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += "<td class=\"n\">" + escape_xml(text) + "</td>";
  return out;
}

std::string verdict_cell(Verdict verdict, double margin, const std::string& html) {
  return "<td class=\"v " + margin_class(verdict, margin) + "\"><span>" + glyph(verdict) + " " +
         html + "</span></td>";
}

std::string margin_class(Verdict verdict, double margin) {
  if (verdict == Verdict::Within)
    return margin <= 0.25 ? "m1" : margin <= 0.5 ? "m2" : margin <= 0.75 ? "m3" : "m4";
  // In the order of the enumeration.
  constexpr std::array<const char*, kVerdicts.size()> kClasses = {"m0",    "",     "bad", "skip-c",
                                                                  "crash", "late", "none"};
  return kClasses.at(static_cast<size_t>(verdict));
}

std::string at(double place) { return shortest(std::round(place * 10) / 10); }

std::string drawing(const std::string& title, double height, const std::string& svg) {
  return "<svg class=\"chart\" viewBox=\"0 0 " + at(kDrawingWidth) + " " + at(height) +
         "\" width=\"" + at(kDrawingWidth) + "\" role=\"img\" font-size=\"12\">\n<title>" +
         escape_xml(title) + "</title>\n" + svg + "</svg>\n";
}

std::string drawn_text(double x, double y, const char* anchor, const std::string& words) {
  return "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\" text-anchor=\"" + anchor +
         "\" fill=\"currentColor\">" + escape_xml(words) + "</text>\n";
}

std::string drawn_line(double x1, double y1, double x2, double y2, const std::string& how) {
  return "<line x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" + at(x2) + "\" y2=\"" + at(y2) +
         "\" " + how + "/>\n";
}

std::string drawn_bar(double x, double width, const char* fill, const std::string& css_class) {
  const auto rounded = [](double value) { return shortest(std::round(value * 1000) / 1000); };
  return "<rect x=\"" + rounded(x) + "\" width=\"" + rounded(width) + "\" height=\"1\" fill=\"" +
         fill + (css_class.empty() ? "\"/>" : "\" class=\"" + css_class + "\"/>");
}

std::string drawn_curve(const std::string& points, const std::string& how) {
  return "<polyline points=\"" + points + "\" fill=\"none\" stroke-width=\"1.6\" " + how + "/>\n";
}

}  // namespace equigrad::reports
