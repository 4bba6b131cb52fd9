#include "worker_runtime/process_group/backend_choice.hpp"

#include "ddp/error.hpp"

namespace ddp::process_group {

namespace {

// One entry of the list, a backend alone or behind the kind of device that it is for.
bool* chosen(BackendChoice& choice, const std::string& entry) {
  if (entry == "cpu" || entry == "cpu:cpu") return &choice.cpu;
  if (entry == "nccl" || entry == "cuda:nccl") return &choice.nccl;
  return nullptr;
}

}  // namespace

BackendChoice backend_choice(const std::string& text) {
  BackendChoice choice;
  const auto comma = text.find(',');
  const bool is_list = comma != std::string::npos;
  const std::string first = text.empty() ? "cpu" : text.substr(0, comma);
  bool* const of_first = chosen(choice, first);
  if (of_first != nullptr) *of_first = true;
  bool is_known = of_first != nullptr;
  if (is_list && is_known) {
    const std::string second = text.substr(comma + 1);
    bool* const of_second = chosen(choice, second);
    is_known = of_second != nullptr && of_second != of_first && first.find(':') != std::string::npos &&
               second.find(':') != std::string::npos;
    if (is_known) *of_second = true;
  }
  if (is_known) return choice;
  throw InvalidArgument("there is no backend '" + text + "'\ntry:   cpu, nccl, or cpu:cpu,cuda:nccl for both");
}

}  // namespace ddp::process_group
