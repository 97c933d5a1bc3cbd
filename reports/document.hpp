// Document: what every page is made of: its frame, sections, tables, cells, drawings, and escaped
// text.
//
// Fixed text (the frame, style, script) lies in reports/templates/, which the build puts into the
// program; {{key}} in it is replaced, what replaces it is not read again.
//
// Invariants: every function returns balanced HTML. Parameters called `html` are written as they
//   are; all others are foreign text, which is escaped.
// Units: limits in bytes.
// Errors: std::logic_error for a template that is not there, or a {{key}} without a value.
// Depends on: reports/record.hpp, reports/folder_index.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/folder_index.hpp"
#include "reports/record.hpp"

namespace equigrad::reports {

// The file reports/templates/NAME; empty where there is none.
std::string_view template_text(std::string_view name);

using Values = std::vector<std::pair<std::string_view, std::string_view>>;
std::string filled(std::string_view template_name, const Values& values = {});

// How a run came about; pages end with it.
struct Origin {
  const Environment& environment;
  const std::string& command;
  uint64_t seed = 0;
  double wall_s = 0;
};

struct Document {
  Origin origin;
  std::string brand;  // Equigrad compare
  std::string_view
      outcome;  // held, equivalent, ...: gives colour, mark, heading, title; or nothing
  std::string reports_html = link_to_index();
  std::string heading = {};      // of a page without an outcome
  std::string title = {};        // of the window; empty: brand and outcome
  std::string banner_html = {};  // below the heading
  std::vector<std::pair<std::string, std::string>> links = {};  // section -> its name
  std::string html = {};                                        // sections
  std::string end_html = {};                                    // sections after the environment's
  std::string data_file;  // run.json: the JSON file beside the page
};
std::string to_html(const Document& document);

// Cut between characters, with a note that the rest is in the data file, and escaped.
std::string shown(const std::string& text, size_t limit_bytes);

std::string paragraph(const std::string& html);
std::string section(const std::string& id, const std::string& title, const std::string& html);
// Folded: its title and note are seen, the rest when it is opened or led to.
std::string folded_section(const std::string& id, const std::string& title,
                           const std::string& note_html, const std::string& html);
// One line: of what this page has none.
std::string empty_section(const std::string& id, const std::string& title, const std::string& html);
// Whether a file's name is safe as a relative link as it stands.
bool is_plain_path(const std::string& path);
// What went wrong: a tag and a name above its text.
std::string article(const std::string& id, const std::string& css_class, const std::string& tag,
                    const std::string& name_html, const std::string& html);
std::string replay_html(const std::string& line);  // empty where there is none

// Heads of columns of words, of numbers.
std::string heads(const std::vector<std::string>& names_html);
std::string number_heads(const std::vector<std::string>& names_html);
// `heads_html`: heads() and such; `rows_html`: row() and such.
std::string table(const std::string& caption_html, const std::string& heads_html,
                  const std::string& rows_html, const std::string& css_class = {});
// A row between them, over all columns.
std::string subtitle(size_t columns, const std::string& html, bool is_first);
std::string row(const std::string& head_html, const std::string& cells_html);
std::string cell(const std::string& text, size_t limit_bytes);
std::string number_cells(const std::vector<std::string>& texts);
std::string verdict_cell(Verdict verdict, double margin, const std::string& html);
std::string margin_class(Verdict verdict, double margin);  // of a coloured cell

// Pieces of SVG, drawn in the page's own colour where none is given. Places are in drawing units,
// of which a drawing is kDrawingWidth wide, rounded to a tenth.
inline constexpr double kDrawingWidth = 760;

std::string at(double place);
std::string drawing(const std::string& title, double height, const std::string& svg);
std::string drawn_text(double x, double y, const char* anchor, const std::string& words);
// `how`: attributes, as in stroke="currentColor"
std::string drawn_line(double x1, double y1, double x2, double y2, const std::string& how);
// A piece of a bar that is one unit high, in thousandths of a unit.
std::string drawn_bar(double x, double width, const char* fill, const std::string& css_class = {});
std::string drawn_curve(const std::string& points, const std::string& how);

}  // namespace equigrad::reports
