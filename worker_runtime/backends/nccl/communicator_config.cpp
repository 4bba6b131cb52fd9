#include "worker_runtime/backends/nccl/communicator_config.hpp"

#include <climits>
#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::nccl_backend {

namespace {

constexpr std::size_t kOldestBytes = offsetof(abi::Config, comm_name);

void require_at_least(const char* name, const std::optional<int>& value, int least) {
  if (!value || *value >= least) return;
  throw InvalidArgument("init_process_group: nccl." + std::string(name) + " is " + std::to_string(*value) +
                        "\ntry:   " + std::to_string(least) + " or more, or none");
}

const char* kept_for_ever(const std::string& name) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

}  // namespace

CommunicatorConfig::CommunicatorConfig(NcclOptions options, int nccl_version)
    : options_(std::move(options)), nccl_version_(nccl_version) {
  require_at_least("min_ctas", options_.min_ctas, 1);
  require_at_least("max_ctas", options_.max_ctas, 1);
  require_at_least("traffic_class", options_.traffic_class, 0);
  if (options_.min_ctas && options_.max_ctas && *options_.min_ctas > *options_.max_ctas) {
    throw InvalidArgument("init_process_group: nccl.min_ctas is " + std::to_string(*options_.min_ctas) +
                          ", more than max_ctas, " + std::to_string(*options_.max_ctas));
  }
  if (options_.traffic_class && nccl_version_ < abi::kVersionWithTrafficClass) {
    throw InvalidArgument("init_process_group: nccl.traffic_class needs NCCL " +
                          version_text(abi::kVersionWithTrafficClass) + " or later, and this is " +
                          version_text(nccl_version_) + "\ntry:   NCCL_IB_TC in the environment, or a later NCCL");
  }
}

abi::Config CommunicatorConfig::for_group(const std::string& group_name) const {
  abi::Config config;
  config.blocking = 1;
  config.split_share = 0;  // an abort of one communicator must not take another with it
  config.min_ctas = options_.min_ctas.value_or(abi::kUndefinedInt);
  // NCCL compares the two even where it was given the first alone, and caps the second.
  const int most = options_.min_ctas ? INT_MAX : abi::kUndefinedInt;
  config.max_ctas = options_.max_ctas.value_or(most);
  if (nccl_version_ >= abi::kVersionWithTrafficClass) {
    config.version = abi::kVersionWithTrafficClass;
    config.traffic_class = options_.traffic_class.value_or(abi::kUndefinedInt);
  }
  if (nccl_version_ >= abi::kVersionWithNames) {
    config.comm_name = kept_for_ever(options_.name.empty() ? group_name : options_.name);
  } else {
    config.size = kOldestBytes;
  }
  return config;
}

abi::Config CommunicatorConfig::for_setup(const std::string& group_name) const {
  abi::Config config = for_group(group_name);
  config.blocking = 0;
  return config;
}

}  // namespace ddp::nccl_backend
