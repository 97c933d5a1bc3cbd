// Program: what a rank of the conformance pool can be asked to do.
//
//   {"do": "hello"}                                     versions, and one sum over the ranks
//   {"do": "twin",  "id", "seed", "path", "data"}       writes a twin's file
//   {"do": "case",  "id", "seed", "twin", "data", ...}  on_rank/run.hpp
//   {"do": "contract", "id", "seed", "data", ...}       on_rank/contract.hpp
//   {"do": "train", ...}                                on_rank/train.hpp
//   {"do": "compare", ...}                              on_rank/compare.hpp
//
// Invariants: "data" says where the files are (see DataFiles); a rank reads them once.
// Units: none.
// Errors: equigrad::Error for an unknown request; what the requests' own headers say.
// Depends on: ranks/pool.hpp. No torch in the header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "conformance/ranks/pool.hpp"

namespace equigrad::conformance {

// "text" is a file; "images" and "labels" are files in IDX format, or empty.
struct DataFiles {
  std::string text, images, labels;
};
nlohmann::json to_json(const DataFiles& files);

// What the build knows, or what lies in `directory` (plays.txt or plays_slice.txt, and
// t10k-images-idx3-ubyte.gz with its labels), where that is not empty. `all_text`: all plays.
DataFiles find_data(const std::string& directory, bool all_text);

nlohmann::json serve(const nlohmann::json& request, ranks::RankContext& context);

}  // namespace equigrad::conformance
