#include "reports/losses.hpp"

#include <algorithm>
#include <sstream>

#include "reports/json_text.hpp"
#include "reports/table.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {

template <>
inline constexpr auto kFields<LossPart> =
    std::tuple(Field{"part", &LossPart::name}, Field{"what", &LossPart::what},
               Field{"points", &LossPart::points}, Field{"by_engines", &LossPart::by_engines},
               Field{"old_left", &LossPart::old_left}, Field{"new_left", &LossPart::new_left},
               Field{"refused", &LossPart::refused}, Field{"wrong", &LossPart::wrong},
               Field{"seconds", &LossPart::seconds});

void to_json(Json& json, const LossFailure& failure) {
  json = {{"point", failure.point},
          {"message", clean(failure.message)},
          {"replay", clean(failure.replay)}};
}

void to_json(Json& json, const CarelessSaver& saver) {
  json = {{"careless", saver.name},          {"what", saver.what},
          {"caught", saver.caught},          {"point", saver.point},
          {"message", clean(saver.message)}, {"points", saver.points}};
}

namespace {

int64_t points_of(const Losses& losses) {
  int64_t points = 0;
  for (const auto& part : losses.parts) points += part.points;
  return points;
}

int64_t wrong_of(const Losses& losses) {
  int64_t wrong = 0;
  for (const auto& part : losses.parts) wrong += part.wrong;
  return wrong;
}

int64_t uncaught(const Losses& losses) {
  return std::count_if(losses.careless.begin(), losses.careless.end(),
                       [](const auto& one) { return !one.caught; });
}

// Where they do not fit beside the numbers, the words of a part stand below.
void write_parts(std::ostringstream& out, const Losses& losses, std::size_t columns) {
  constexpr std::size_t kFront = 2;  // "# "
  std::vector<TableRow> rows = {
      {"part", "points", "engines", "old", "new", "refused", "WRONG", "s", "what"}};
  for (const auto& part : losses.parts)
    rows.push_back({part.name, grouped(part.points), grouped(part.by_engines),
                    grouped(part.old_left), grouped(part.new_left), grouped(part.refused),
                    grouped(part.wrong), formatted("%.1f", part.seconds), part.what});
  const bool has_words = columns == 0 || line_width(rows) + kFront <= columns;
  std::vector<std::string> left_out;
  if (!has_words) {
    for (auto& row : rows) row.pop_back();
    left_out = narrow(rows, columns - kFront, {"s", "engines", "refused"});
  }
  const auto lines = aligned_lines(rows, {"what"});
  for (std::size_t i = 0; i < lines.size(); ++i) out << (i == 0 ? "# " : "  ") << lines[i] << "\n";
  if (!left_out.empty()) out << "# too wide, in crash.json: " << joined(left_out, ", ") << "\n";
  if (has_words) return;
  for (const auto& part : losses.parts)
    out << fitted("# " + part.name + ": " + part.what + "\n", columns);
}

void write_careless(std::ostringstream& out, const Losses& losses, std::size_t columns) {
  if (losses.careless.empty()) return;
  std::size_t width = 0;
  for (const auto& one : losses.careless) width = std::max(width, one.name.size());
  out << "# careless savers, which must be seen\n";
  for (const auto& one : losses.careless) {
    const std::string fill(width - one.name.size(), ' ');
    const std::string points = count_of(one.points, "point"),
                      words = one.caught ? one.point + ", of " + points : points + ": " + one.what;
    out << fitted(
        (one.caught ? "  caught  " : "  UNSEEN  ") + one.name + fill + "  " + words + "\n",
        columns);
  }
}

}  // namespace

Outcome outcome(const Losses& losses) {
  if (losses.interrupted) return Outcome::Interrupted;
  if (!losses.failure.empty()) return Outcome::Broken;
  if (wrong_of(losses) > 0) return Outcome::Failed;
  if (uncaught(losses) > 0) return Outcome::Void;
  return points_of(losses) + static_cast<int64_t>(losses.careless.size()) > 0
             ? Outcome::Held
             : Outcome::Inconclusive;
}

int exit_code(const Losses& losses) { return exit_code(outcome(losses), losses.signal); }

std::string verdict_text(const Losses& losses) {
  switch (outcome(losses)) {
    case Outcome::Held:
      return "after each of " + grouped(points_of(losses)) +
             " losses the old checkpoint or the new one was there, whole, and what was damaged was "
             "refused.";
    case Outcome::Failed:
      return count_of(wrong_of(losses), "point") + " of " + grouped(points_of(losses)) +
             " left what must not be.";
    case Outcome::Void:
      return count_of(uncaught(losses), "careless saver") +
             " went unseen: a mistake like it in the engine would too.";
    case Outcome::Broken:
      return clean(losses.failure);
    case Outcome::Inconclusive:
      return "nothing was tried.";
    case Outcome::Interrupted:
      return "this is what was found so far.";
  }
  return {};
}

std::string to_json(const Losses& losses) {
  return document_lines({{"schema_version", losses.schema_version},
                         {"outcome", word(outcome(losses))},
                         {"exit_code", exit_code(losses)},
                         {"environment", losses.environment},
                         {"command", clean(losses.command)},
                         {"seed", std::to_string(losses.seed)},
                         {"failure", clean(losses.failure)},
                         {"wall_s", losses.wall_s},
                         {"points", points_of(losses)},
                         {"wrong", wrong_of(losses)},
                         {"parts", losses.parts},
                         {"failures", losses.failures},
                         {"careless", losses.careless}});
}

std::string to_terminal(const Losses& losses, std::size_t columns) {
  std::ostringstream out;
  write_parts(out, losses, columns);
  write_careless(out, losses, columns);
  out << "# " << seconds_text(losses.wall_s) << " in all\n";
  for (const auto& failure : losses.failures)
    out << "WRONG  " << clean(failure.point) << "\n"
        << fitted("  " + clean(failure.message) + "\n", columns) << replay_line(failure.replay);
  out << fitted(upper_case(word(outcome(losses))) + "  " + verdict_text(losses) + "\n", columns)
      << replay_line(losses.failures.empty() ? losses.command : losses.failures[0].replay);
  return out.str();
}

}  // namespace equigrad::reports
