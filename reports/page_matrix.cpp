#include <algorithm>
#include <map>
#include <optional>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

using Cells = std::map<std::vector<std::string>, Group>;  // stage, precision, style, ranks
using Names = std::vector<std::string>;

// Precisions and styles of a stage, no two of which have other verdicts with the same ranks.
struct MatrixRow {
  Names precisions, styles;
};

bool holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has(const MatrixRow& row, const std::string& precision, const std::string& style) {
  return holds(row.precisions, precision) && holds(row.styles, style);
}

void add_name(Names& names, const std::string& name) {
  if (!holds(names, name)) names.push_back(name);
}

Verdict verdict_of(const Group& group) {
  return group.counts.vacuous > 0 && !went_wrong(group.verdict()) ? Verdict::Failed
                                                                  : group.verdict();
}

class Matrix {
 public:
  explicit Matrix(const Run& run)
      : stages_(values(run, "stage")),
        precisions_(values(run, "precision")),
        styles_(values(run, "style")),
        ranks_(values(run, "ranks")) {
    for (Group& group : group_by(run, {"stage", "precision", "style", "ranks"}))
      cells_.emplace(group.key, group);
  }

  std::string head() const {
    std::string out = heads({"ZeRO stage", "Precision", "Called by"});
    for (const auto& ranks : ranks_)
      out +=
          "<th scope=\"col\">" + shown(ranks, 60) + (ranks == "1" ? " rank" : " ranks") + "</th>";
    return out;
  }

  std::string rows() const {
    std::string out;
    for (const auto& stage : stages_) {
      if (!out.empty()) out += "</tbody>\n<tbody>\n";
      const auto rows = rows_of(stage);
      for (size_t i = 0; i < rows.size(); ++i) {
        out += "<tr>";
        if (i == 0)
          out += "<th scope=\"rowgroup\" rowspan=\"" + std::to_string(rows.size()) + "\">" +
                 escape_xml(stage) + "</th>";
        out += name_cell(rows[i].precisions, precisions_) + name_cell(rows[i].styles, styles_);
        for (const auto& ranks : ranks_) out += cell_of(stage, rows[i], ranks);
        out += "</tr>\n";
      }
    }
    return out;
  }

 private:
  const Group* find(const std::string& stage, const std::string& precision,
                    const std::string& style, const std::string& ranks) const {
    const auto found = cells_.find({stage, precision, style, ranks});
    return found == cells_.end() ? nullptr : &found->second;
  }

  // Whether cells with the same ranks have the same verdict, those that are there.
  bool is_uniform(const std::string& stage, const MatrixRow& row) const {
    for (const auto& ranks : ranks_) {
      std::optional<Verdict> seen;
      for (const auto& precision : row.precisions)
        for (const auto& style : row.styles) {
          const Group* group = find(stage, precision, style, ranks);
          if (group == nullptr) continue;
          if (seen && *seen != verdict_of(*group)) return false;
          seen = verdict_of(*group);
        }
    }
    return true;
  }

  bool is_empty(const std::string& stage, const std::string& precision,
                const std::string& style) const {
    return std::none_of(ranks_.begin(), ranks_.end(), [&](const std::string& ranks) {
      return find(stage, precision, style, ranks) != nullptr;
    });
  }

  // One row of both, if it is uniform and takes no cell that neither had.
  std::optional<MatrixRow> joint(const std::string& stage, const MatrixRow& a,
                                 const MatrixRow& b) const {
    MatrixRow sum = a;
    for (const auto& name : b.precisions) add_name(sum.precisions, name);
    for (const auto& name : b.styles) add_name(sum.styles, name);
    for (const auto& precision : sum.precisions)
      for (const auto& style : sum.styles)
        if (!has(a, precision, style) && !has(b, precision, style) &&
            !is_empty(stage, precision, style))
          return std::nullopt;
    return is_uniform(stage, sum) ? std::optional(sum) : std::nullopt;
  }

  void add_row(const std::string& stage, std::vector<MatrixRow>& rows, MatrixRow next) const {
    for (MatrixRow& row : rows)
      if (auto sum = joint(stage, row, next)) {
        row = std::move(*sum);
        return;
      }
    rows.push_back(std::move(next));
  }

  // Styles that are alike in one precision first, then precisions.
  std::vector<MatrixRow> rows_of(const std::string& stage) const {
    std::vector<MatrixRow> rows;
    for (const auto& precision : precisions_) {
      std::vector<MatrixRow> own;
      for (const auto& style : styles_)
        if (!is_empty(stage, precision, style)) add_row(stage, own, {{precision}, {style}});
      for (MatrixRow& next : own) add_row(stage, rows, std::move(next));
    }
    return rows;
  }

  static std::string name_cell(const Names& names, const Names& all) {
    const std::string count = "all " + std::to_string(all.size());
    const std::string list = shown(joined(names, ", "), 400);
    const bool is_all = names.size() == all.size() && all.size() > 2;
    return "<th scope=\"row\">" +
           (is_all ? "<span title=\"" + list + "\">" + count + "</span>" : list) + "</th>";
  }

  std::string cell_of(const std::string& stage, const MatrixRow& row,
                      const std::string& ranks) const {
    Group sum;
    std::string target;
    for (const auto& precision : row.precisions)
      for (const auto& style : row.styles)
        if (const Group* group = find(stage, precision, style, ranks)) {
          if (target.empty()) target = group_anchor(stage, precision, ranks);
          sum.cases.insert(sum.cases.end(), group->cases.begin(), group->cases.end());
          if (worse_margin(group->margin, sum.margin)) sum.margin = group->margin;
        }
    if (sum.cases.empty())
      return "<td class=\"none\"><span title=\"not in this run\">&nbsp;</span></td>";
    for (const Case* one : sum.cases) sum.counts.add(*one);
    for (const Case* one : worst_first(sum.cases))
      if (went_wrong(one->verdict) || vacuous(*one)) {
        target = anchor(one->id);
        break;
      }
    const Verdict verdict = verdict_of(sum);
    const int64_t wrong = sum.counts.went_wrong() + sum.counts.vacuous;
    return "<td class=\"" + margin_class(verdict, sum.margin) + "\"><a href=\"#" + target +
           "\" title=\"stage " + shown(stage, 60) + ", " + shown(ranks, 60) +
           (ranks == "1" ? " rank: " : " ranks: ") + counts_text(sum.counts) + "\">" +
           glyph(verdict) + " " + (wrong > 0 ? grouped(wrong) + "/" : "") +
           grouped(static_cast<int64_t>(sum.cases.size())) + "</a></td>";
  }

  Names stages_, precisions_, styles_, ranks_;
  Cells cells_;
};

}  // namespace

std::string page_matrix(const Run& run) {
  if (run.cases.empty()) return section("matrix", "Matrix", "<p>No case was run.</p>\n");
  const Matrix matrix(run);
  return section("matrix", "Matrix",
                 table("How many cases there were, and what came of them: = every bit equal, ≈ "
                       "inside the bound, ✗ 2/12 means that 2 of 12 went wrong. Precisions and "
                       "ways to call with the same verdicts are one row.",
                       matrix.head(), matrix.rows(), "x") +
                     filled("legend.html"));
}

}  // namespace equigrad::reports
