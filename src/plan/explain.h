// A formula with its numbers put in, and where it is from.
#pragma once

#include <string>
#include <vector>

namespace triax::plan {

struct Explanation {
  std::string what;     // "tokens that fit on the device"
  std::string formula;  // with the letters of docs/plan.md
  std::string numbers;  // the same with numbers, and what comes out
  std::string source;
};

using Explanations = std::vector<Explanation>;

}  // namespace triax::plan
