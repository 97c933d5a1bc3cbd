#include <algorithm>
#include <sstream>

#include "reports/causes.hpp"
#include "reports/merge.hpp"
#include "reports/parts.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::reports {
namespace {

constexpr std::size_t kMostNamed = 20;  // cases of a cause, beside the one that is told

// A fence one backtick longer than any run of backticks inside.
std::string fenced(const std::string& text) {
  size_t longest = 2;
  size_t current = 0;
  for (const char c : text) longest = std::max(longest, current = c == '`' ? current + 1 : 0);
  const std::string fence(longest + 1, '`');
  return fence + "text\n" + text + "\n" + fence + "\n";
}

void write_table(std::ostringstream& out, const Run& run) {
  out << "\n| stage | precision | ranks | cases | elements compared | exact: differing | cross: "
         "differing | bounded: margin | verdict |\n"
         "|--:|:--|--:|--:|--:|--:|--:|--:|:--|\n";
  for (const Group& group : group_by(run, {"stage", "precision", "ranks"})) {
    const Verdict verdict = group.verdict();
    out << "| " << escape_markdown(group.key[0])
        << markdown_cells({escape_markdown(group.key[1]), escape_markdown(group.key[2]),
                           grouped(group.counts.total()), grouped(group.counts.compared),
                           lane_text(group, "exact"), lane_text(group, "cross"),
                           lane_text(group, "bounded"), glyph(verdict) + " " + spoken(verdict)})
        << "\n";
  }
}

void write_front(std::ostringstream& out, const Run& run) {
  const Counts sum = counts_of_selected(run);
  out << "## Equigrad: " << word(outcome(run)) << "\n\n"
      << escape_markdown(outcome_text(run)) << "\n\n"
      << counts_text(sum) << "; " << elements_text(sum, run.wall_s) << ".\n\n";
  for (const std::string& line : part_lines(run)) out << escape_markdown(line) << ".\n\n";
  out << environment_line(run.environment) << ", seed " << run.seed << "\n";
  write_table(out, run);
  out << "\n| planted fault | caught by |\n|:--|:--|\n";
  for (const SelfCheck& check : run.self_checks) {
    out << "| " << escape_markdown(words_of(check)) << " | "
        << (check.caught ? "" : "**not caught** ") << escape_markdown(check.by) << " |\n";
  }
  const std::vector<Reason> why = reasons(run);
  if (!why.empty()) out << "\n| not run or skipped | cases |\n|:--|--:|\n";
  for (const Reason& reason : why) {
    out << "| " << spoken(reason.verdict) << ": " << escape_markdown(reason.text) << " | "
        << grouped(reason.cases) << " |\n";
  }
}

// The worst of a cause is told in full, the others by name.
std::string section(const Cause& cause) {
  const auto cases = worst_first(cause.cases);
  std::string text = "\n### " + glyph(cause.verdict) + " " + escape_markdown(cause.text) + "\n\n" +
                     escape_markdown(where_text(cause)) + "\n\n" +
                     escape_markdown(cases.front()->id) + "\n\n" +
                     fenced(clean(message_with_replay(*cases.front())));
  if (cases.size() == 1) return text;
  text += "\n<details><summary>" + grouped(static_cast<int64_t>(cases.size() - 1)) +
          " more</summary>\n\n";
  const auto named = std::min(cases.size(), kMostNamed + 1);
  for (std::size_t i = 1; i < named; ++i) text += "- " + escape_markdown(cases[i]->id) + "\n";
  if (named < cases.size())
    text += "- and " + grouped(static_cast<int64_t>(cases.size() - named)) + " others\n";
  return text + "\n</details>\n";
}

}  // namespace

std::string to_markdown(const Run& run, size_t max_bytes) {
  constexpr size_t kClosingBytes = 100;
  std::ostringstream front;
  write_front(front, run);
  std::string out = front.str();
  const size_t room = max_bytes - std::min(max_bytes, kClosingBytes);
  if (out.size() > room) {
    // Cut at a line, never inside a character.
    const size_t end = out.rfind('\n', room);
    out.resize(end == std::string::npos ? 0 : end + 1);
  }
  int64_t left_out = 0;
  for (const Cause& cause : causes(run)) {
    const std::string next = section(cause);
    if (out.size() + next.size() > room) {
      left_out += static_cast<int64_t>(cause.cases.size());
    } else {
      out += next;
    }
  }
  if (left_out > 0) out += "\nand " + grouped(left_out) + " more, see run.json\n";
  return out;
}

}  // namespace equigrad::reports
