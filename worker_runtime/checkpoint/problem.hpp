// What went wrong on one rank, as a text for the others.
#pragma once

#include <exception>
#include <string>

namespace ddp::checkpoint {

// What `step` throws; empty: nothing.
template <class Step>
std::string problem_of(const Step& step) {
  try {
    step();
    return "";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "an error without a text" : text;
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace ddp::checkpoint
