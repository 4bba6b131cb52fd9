#include "worker_runtime/backends/nccl/device_choice.hpp"

#include "ddp/error.hpp"

namespace ddp::nccl_backend {

namespace {

std::string devices_seen(const DeviceQuestion& question) {
  std::string text = "this process sees " + std::to_string(question.count) + (question.count == 1 ? " GPU" : " GPUs");
  if (!question.visible_devices.empty()) text += " (CUDA_VISIBLE_DEVICES=" + question.visible_devices + ")";
  return text;
}

}  // namespace

int choose_device(const DeviceQuestion& question) {
  if (question.count == 0) {
    throw InvalidArgument("the backend nccl needs a GPU: " + devices_seen(question) +
                          "\ntry:   `nvidia-smi -L` lists them; the backend cpu needs none");
  }
  if (question.named) {
    if (*question.named >= 0 && *question.named < question.count) return *question.named;
    throw InvalidArgument("there is no device cuda:" + std::to_string(*question.named) + ": " + devices_seen(question) +
                          "\ntry:   an index below " + std::to_string(question.count));
  }
  if (question.count == 1 || question.local_rank < question.count) {
    // One that is alone in sight was bound to this worker; whether others took it too is found when the ranks meet.
    return question.count == 1 ? 0 : question.local_rank;
  }
  if (question.share_device) return question.local_rank % question.count;
  throw InvalidArgument("local rank " + std::to_string(question.local_rank) + " of " +
                        std::to_string(question.local_size) + " has no GPU of its own: " + devices_seen(question) +
                        "\ntry:   as many ranks on a host as it has GPUs, or InitOptions::share_device");
}

std::string shared_device_message(int first_rank, int second_rank, const std::string& device) {
  return "ranks " + std::to_string(first_rank) + " and " + std::to_string(second_rank) + " are both on " + device +
         "\ntry:   give every rank a GPU of its own (LOCAL_RANK, InitOptions::device, or ddprun --virtual-local-rank), "
         "or "
         "set InitOptions::share_device where that is meant";
}

}  // namespace ddp::nccl_backend
