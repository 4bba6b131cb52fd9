// Which GPU a rank takes, and whether two ranks took the same one. Pure.
//
// Without an override it is LOCAL_RANK's, counted among the devices that the process sees: CUDA_VISIBLE_DEVICES, by
// index, UUID or MIG, is CUDA's to read, and what the launcher bound this worker to alone is then the only one.
#pragma once

#include <optional>
#include <string>

#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

struct DeviceQuestion {
  int count = 0;  // of devices that this process sees
  int local_rank = 0;
  int local_size = 1;
  std::optional<int> named{};     // by the program
  bool share_device = false;      // whether ranks of a host may be on one
  std::string visible_devices{};  // CUDA_VISIBLE_DEVICES, for messages; empty where it is not set
};

// The device's index as the process sees it. Throws InvalidArgument.
int choose_device(const DeviceQuestion& question);

// The words in which two ranks on one GPU are told, on every rank alike.
std::string shared_device_message(int first_rank, int second_rank, const std::string& device);

}  // namespace ddp::nccl_backend
