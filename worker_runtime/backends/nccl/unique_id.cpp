#include "worker_runtime/backends/nccl/unique_id.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "ddp/error.hpp"
#include "worker_runtime/backends/nccl/device_choice.hpp"

namespace ddp::nccl_backend {

namespace {

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// "3 shared": rank 3, which means to share it.
std::string claim_of(const Arrival& arrival) {
  return std::to_string(arrival.rank) + (arrival.share_device ? " shared" : " alone");
}

void agree_on_version(const Arrival& own, core::StoreAgreement& agreement) {
  const std::string version = std::to_string(own.nccl_version);
  const std::string first = agreement.first("version", version);
  if (first == version) return;
  agreement.refuse("rank " + std::to_string(own.rank) + " has NCCL " + version_text(own.nccl_version) +
                   ", another rank has NCCL " + version_text(number_in(first).value_or(0)) +
                   "\ntry:   the same NCCL on every host; DDP_NCCL_LIBRARY names the one to take");
}

void claim_gpu(const Arrival& own, core::StoreAgreement& agreement) {
  const std::string claim = claim_of(own);
  const std::string first = agreement.first("gpu/" + own.host + "/" + own.gpu, claim);
  const bool all_share = own.share_device && first.ends_with(" shared");
  if (first == claim || all_share) return;
  const int other = number_in(std::string_view(first).substr(0, first.find(' '))).value_or(0);
  agreement.refuse(shared_device_message(std::min(own.rank, other), std::max(own.rank, other), own.gpu_name));
}

abi::UniqueId decode(const std::string& bytes) {
  abi::UniqueId id;
  if (bytes.size() != sizeof id.internal) {
    throw StoreError("the store holds " + std::to_string(bytes.size()) + " bytes in the place of NCCL's unique id");
  }
  std::copy(bytes.begin(), bytes.end(), id.internal);
  return id;
}

}  // namespace

abi::UniqueId id_of_one(const NcclLibrary& nccl) {
  abi::UniqueId id;
  const abi::Result result = nccl->get_unique_id(&id);
  if (result == abi::Result::success) return id;
  throw Error("NCCL gives no unique id: " + nccl.describe(result, nullptr) + "\nwhere: " + nccl.name() +
              "\ntry:   " + nccl.log_advice() + "; NCCL_SOCKET_IFNAME names the network interface to take");
}

abi::UniqueId agree_on_id(const Arrival& own, const NcclLibrary& nccl, core::StoreAgreement& agreement) {
  if (own.rank == 0) {
    const abi::UniqueId id = id_of_one(nccl);
    agreement.give("id", std::string(id.internal, sizeof id.internal));
  }
  agree_on_version(own, agreement);
  claim_gpu(own, agreement);
  agreement.wait_for_all();
  return decode(agreement.take("id"));
}

}  // namespace ddp::nccl_backend
