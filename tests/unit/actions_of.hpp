// Looks into what a pure core has decided.
#pragma once

#include <variant>
#include <vector>

namespace ddp::testing {

// The actions of this type, in their order.
template <class What, class Action>
std::vector<What> all(const std::vector<Action>& actions) {
  std::vector<What> out;
  for (const auto& action : actions)
    if (const auto* what = std::get_if<What>(&action)) out.push_back(*what);
  return out;
}

}  // namespace ddp::testing
