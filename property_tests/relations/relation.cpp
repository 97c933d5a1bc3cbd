#include "property_tests/relations/relation.hpp"

namespace equigrad::property_tests::relations {

Record Runs::train(const json& one, const Way& way) {
  if (way.world != 0 && context.rank() >= way.world) return {};
  Session session(one, context, way);
  session.train();
  return session.record;
}

const Record& Runs::plain() {
  if (plain_.digests.empty()) plain_ = train(one_);
  return plain_;
}

std::string parted(const Record& one, const Record& other, const Keep& keep) {
  if (one.digests.empty() || other.digests.empty()) return "";  // not a rank of both
  int compared = 0;
  for (const auto& [key, digest] : one.digests) {
    if (keep && !keep(key)) continue;
    ++compared;
    const auto found = other.digests.find(key);
    if (found == other.digests.end()) return "only one has " + key;
    if (found->second != digest) return "they part in " + key;
  }
  for (const auto& [key, digest] : other.digests)
    if ((!keep || keep(key)) && !one.digests.contains(key)) return "only the other has " + key;
  return compared > 0 ? "" : "nothing was compared";
}

std::string as_plain(const json& one, Runs& runs, const Pass& pass) {
  Way way;
  way.pass = pass;
  return parted(runs.train(one, way), runs.plain());
}

}  // namespace equigrad::property_tests::relations
