#include "rendezvous/link/port_answers.hpp"

#include <iterator>

namespace ddp::rendezvous {

void PortAnswers::note(int port, const std::optional<std::string>& try_this) {
  if (try_this)
    refusals_[port] = *try_this;
  else
    refusals_.erase(port);
}

std::optional<std::string> PortAnswers::advice() const {
  if (refusals_.empty()) return {};
  const auto& [port, try_this] = *refusals_.begin();
  return try_this + "; if another job has port " + std::to_string(port) + ", look at the output of ddprun on " +
         endpoint_.host + ", which opens the first free one of these ports";
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
