#include "rendezvous/link/port_answers.hpp"

#include <algorithm>
#include <iterator>

namespace ddp::rendezvous {

void PortAnswers::note(int port, bool is_silent, const std::string& try_this, TimePoint now) {
  answers_[port] = {is_silent && try_this.empty(), try_this};
  const bool all_answer =
      static_cast<int>(answers_.size()) == endpoint_.port_count &&
      std::none_of(answers_.begin(), answers_.end(), [](const auto& at) { return at.second.is_silent; });
  if (!all_answer || advice().empty())
    refused_since_.reset();
  else if (!refused_since_)
    refused_since_ = now;
}

void PortAnswers::forget() {
  answers_.clear();
  refused_since_.reset();
}

std::string PortAnswers::advice() const {
  for (const auto& [port, answer] : answers_)
    if (!answer.try_this.empty())
      return answer.try_this + "; if another job has port " + std::to_string(port) +
             ", look at the output of ddprun on " + endpoint_.host + ", which opens the first free one of these ports";
  return {};
}

std::string PortAnswers::reasons_with(int port, const std::string& why) {
  reasons_[port] = why;
  std::string out;
  for (auto first = reasons_.begin(); first != reasons_.end();) {
    auto last = first;
    while (std::next(last) != reasons_.end() && std::next(last)->second == first->second) ++last;
    out += out.empty() ? "" : "; ";
    out += (first == last ? "port " : "ports ") + range_of_ports(first->first, last->first) + ": " + first->second;
    first = std::next(last);
  }
  return out;
}

}  // namespace ddp::rendezvous
