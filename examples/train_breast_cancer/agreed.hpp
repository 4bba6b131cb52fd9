// Work that every rank does for itself and that must go well on all of them, such as reading the data.
#pragma once

#include <ddp/process_group.hpp>

#include <exception>
#include <functional>

namespace train {

// Another rank failed and says so: this one ends with the same code and prints nothing.
class ToldElsewhere : public std::exception {
 public:
  explicit ToldElsewhere(int exit_code) : exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Collective. Runs `work`; where it threw on any rank, throws on all: on the lowest such rank the exception itself, on
// the others ToldElsewhere, as soon as that rank has left the group. So an error that all ranks share is printed once.
void run_agreed(ddp::ProcessGroup& world, const std::function<void()>& work);

// Prints the exception that is being handled, unless it is ToldElsewhere. Returns the exit code that it stands for.
int report_failure();

}  // namespace train
