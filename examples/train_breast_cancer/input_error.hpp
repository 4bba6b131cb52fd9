// A wrong flag or wrong data: the user can put it right, so the program ends with 2 and not with 1.
#pragma once

#include <stdexcept>

namespace train {

// The message has three parts, as all of this project's: what happened, "\nwhere: ...", "\ntry:   ...".
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr int kExitFailure = 1;
constexpr int kExitWrongInput = 2;

}  // namespace train
