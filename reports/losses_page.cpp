#include "reports/document.hpp"
#include "reports/losses.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string seen_cell(bool is_good, const std::string& good, const std::string& bad) {
  const Verdict like = is_good ? Verdict::Equal : Verdict::Failed;
  return "<td class=\"v " + margin_class(like, 0) + "\"><span>" + (is_good ? "✓ " : "✗ ") +
         escape_xml(is_good ? good : bad) + "</span></td>";
}

std::string parts_section(const Losses& losses) {
  std::string rows;
  for (const LossPart& part : losses.parts)
    rows += row(shown(part.name, 60),
                seen_cell(part.wrong == 0, "held", grouped(part.wrong) + " wrong") +
                    number_cells({grouped(part.points), grouped(part.by_engines),
                                  grouped(part.old_left), grouped(part.new_left),
                                  grouped(part.refused), seconds_text(part.seconds)}) +
                    cell(part.what, 400));
  if (rows.empty()) return empty_section("parts", "What was tried", "Nothing.");
  return section(
      "parts", "What was tried",
      table("Points after which checkpoints were looked at; some of them by fresh "
            "engines, which load and train on. What was left: the old checkpoint, the "
            "new one, or nothing that is loaded.",
            heads({"Part", "Verdict"}) +
                number_heads({"Points", "By engines", "Old left", "New left", "Refused", "Time"}) +
                heads({"What"}),
            rows));
}

std::string failures_section(const Losses& losses) {
  if (losses.failures.empty()) return empty_section("failures", "What went wrong", "Nothing.");
  std::string out;
  for (const LossFailure& failure : losses.failures)
    out +=
        article(anchor("point." + failure.point), "bad", "✗ wrong",
                "<span class=\"id\">" + shown(failure.point, 400) + "</span>",
                "<pre>" + shown(failure.message, 4000) + "</pre>\n" + replay_html(failure.replay));
  return section("failures", "What went wrong", out);
}

std::string careless_section(const Losses& losses) {
  if (losses.careless.empty())
    return empty_section("careless", "Careless savers", "None was tried.");
  std::string rows;
  for (const CarelessSaver& one : losses.careless)
    rows += row("<code>" + shown(one.name, 200) + "</code>",
                seen_cell(one.caught, "caught", "unseen") + number_cells({grouped(one.points)}) +
                    cell(one.what, 400) + cell(one.point, 200) + cell(one.message, 400));
  return section("careless", "Careless savers",
                 table("Savers and readers that were made careless, each of which a point must "
                       "catch: one that is not could hide in the engine as well",
                       heads({"Saver", "Seen"}) + number_heads({"Points"}) +
                           heads({"What it does", "Caught by", "What was said"}),
                       rows));
}

}  // namespace

std::string to_html(const Losses& losses) {
  return to_html(
      Document{.origin = {losses.environment, losses.command, losses.seed, losses.wall_s},
               .brand = "Equigrad crash",
               .outcome = word(outcome(losses)),
               .banner_html = paragraph(escape_xml(verdict_text(losses))),
               .links = {{"failures", "What went wrong"},
                         {"parts", "What was tried"},
                         {"careless", "Careless savers"},
                         {"environment", "Environment"}},
               .html = failures_section(losses) + parts_section(losses) + careless_section(losses),
               .data_file = "crash.json"});
}

}  // namespace equigrad::reports
