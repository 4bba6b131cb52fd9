// What went wrong on one rank, as a text for the others.
#pragma once

#include <exception>
#include <string>

#include "ddp/process_group.hpp"

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

// Collective: "rank 1: <its problem>" of the lowest rank that has one; empty if no rank has. own: of this rank.
std::string problem_of_ranks(ProcessGroup& group, const std::string& own, CollectiveOptions options);

}  // namespace ddp::checkpoint
