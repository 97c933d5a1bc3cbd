#include "conformance/crash/campaign.hpp"

#include "conformance/ranks/interrupt.hpp"

namespace equigrad::conformance::crash {
namespace {

void replay(Ground& ground, const Point& point, reports::Losses& losses) {
  switch (point.kind) {
    case Point::Kind::Power:
    case Point::Kind::Kill:
      return lose_power(ground, losses, &point);
    case Point::Kind::SignalOne:
    case Point::Kind::SignalAll:
    case Point::Kind::LostCall:
      return kill_ranks(ground, losses, &point);
    case Point::Kind::DiskFull:
    case Point::Kind::DiskFails:
      return refuse_all(ground, losses, &point);
    case Point::Kind::Flip:
      return flip_bits(ground, losses, &point);
  }
}

void run_parts(Ground& ground, reports::Losses& losses) {
  const auto& parts = ground.options().parts;
  const auto is_asked = [&](const char* part) {
    return ranks::interrupted() == 0 && (parts.empty() || parts.contains(part));
  };
  if (is_asked("careless")) be_careless(ground, losses);
  if (is_asked("power")) lose_power(ground, losses);
  if (is_asked("refuse")) refuse_all(ground, losses);
  if (is_asked("signal")) kill_ranks(ground, losses);
  if (is_asked("flip")) flip_bits(ground, losses);
}

}  // namespace

const std::vector<std::string>& part_names() {
  static const std::vector<std::string> names = {"careless", "power", "refuse", "signal", "flip"};
  return names;
}

reports::Losses run_crash(const CrashOptions& options) {
  reports::Losses losses;
  losses.seed = options.seed;
  const double begun = seconds_now();
  auto chosen = options;
  std::optional<Point> point;
  if (!options.replay.empty()) point = point_from(options.replay);
  if (point) chosen.worlds = {point->kind == Point::Kind::Flip ? 4 : point->setting.world};
  try {
    Ground ground(chosen);
    if (point)
      replay(ground, *point, losses);
    else
      run_parts(ground, losses);
  } catch (const std::exception& error) {
    losses.failure = error.what();
  }
  losses.signal = ranks::interrupted();
  losses.interrupted = losses.signal != 0;
  losses.wall_s = seconds_now() - begun;
  return losses;
}

}  // namespace equigrad::conformance::crash
