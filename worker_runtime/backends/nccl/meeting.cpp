#include "worker_runtime/backends/nccl/meeting.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>
#include <vector>

#include "ddp/error.hpp"
#include "worker_runtime/backends/nccl/device_choice.hpp"
#include "worker_runtime/core/failure/start_message.hpp"

namespace ddp::nccl_backend {

namespace {

constexpr const char* kGood = "good";
constexpr const char* kRefused = "refused: ";
constexpr std::size_t kMissingMax = 64;  // ranks that are looked for by name
constexpr std::chrono::seconds kLookLimit{1};

class Meeting {
 public:
  Meeting(const Arrival& own, store::Client& store, const std::string& key_prefix, const io::Deadline& deadline)
      : own_(own), store_(store), key_prefix_(key_prefix), end_(deadline.end()), limit_(deadline.full_time()) {}

  void come();
  void give_id(const abi::UniqueId& id) {
    store_.set(key("id"), std::string_view(id.internal, sizeof id.internal), end_);
  }
  abi::UniqueId take_id();
  void wait_for_all();

 private:
  std::string key(const std::string& name) const { return key_prefix_ + "nccl/" + name; }
  std::string first_to_take(const std::string& name, const std::string& value) {
    return store_.compare_set(key(name), "", value, end_);
  }
  void refuse(const std::string& why) { first_to_take("verdict", kRefused + why); }
  [[noreturn]] void throw_missing();

  const Arrival& own_;
  store::Client& store_;
  const std::string& key_prefix_;
  store::TimePoint end_;
  std::chrono::milliseconds limit_;
};

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// "3 shared": rank 3, which means to share it.
std::string claim_of(const Arrival& arrival) {
  return std::to_string(arrival.rank) + (arrival.share_device ? " shared" : " alone");
}

void Meeting::come() {
  store_.set(key("here/" + std::to_string(own_.rank)), "", end_);
  const std::string version = std::to_string(own_.nccl_version);
  if (const std::string first = first_to_take("version", version); first != version) {
    refuse("rank " + std::to_string(own_.rank) + " has NCCL " + version_text(own_.nccl_version) +
           ", another rank has NCCL " + version_text(number_in(first).value_or(0)) +
           "\ntry:   the same NCCL on every host; DDP_NCCL_LIBRARY names the one to take");
  }
  const std::string claim = claim_of(own_);
  const std::string first = first_to_take("gpu/" + own_.host + "/" + own_.gpu, claim);
  const bool all_share = own_.share_device && first.ends_with(" shared");
  if (first != claim && !all_share) {
    const int other = number_in(std::string_view(first).substr(0, first.find(' '))).value_or(0);
    refuse(shared_device_message(std::min(own_.rank, other), std::max(own_.rank, other), own_.gpu_name));
  }
  if (store_.add(key("arrived"), 1, end_) >= own_.size) first_to_take("verdict", kGood);
}

void Meeting::wait_for_all() {
  std::string verdict;
  try {
    verdict = store_.get(key("verdict"), end_);
  } catch (const TimeoutError&) {
    throw_missing();
  }
  if (verdict == kGood) return;
  if (verdict.starts_with(kRefused)) throw InvalidArgument(verdict.substr(std::string_view(kRefused).size()));
  throw StoreError("the key '" + key("verdict") + "' of the store holds '" + verdict.substr(0, 100) + "'");
}

abi::UniqueId Meeting::take_id() {
  const std::string bytes = store_.get(key("id"), end_);  // set before rank 0 came, and all have
  abi::UniqueId id;
  if (bytes.size() != sizeof id.internal) {
    throw StoreError("the key '" + key("id") + "' of the store holds " + std::to_string(bytes.size()) +
                     " bytes, not NCCL's unique id");
  }
  std::copy(bytes.begin(), bytes.end(), id.internal);
  return id;
}

void Meeting::throw_missing() {
  std::vector<int> missing;
  const auto end = std::chrono::steady_clock::now() + kLookLimit;
  for (int rank = 0; rank < own_.size && missing.size() < kMissingMax; ++rank) {
    if (!store_.check({key("here/" + std::to_string(rank))}, end)) missing.push_back(rank);
  }
  throw TimeoutError(core::did_not_join_message(
                         {.backend = "nccl", .rank = own_.rank, .size = own_.size, .pid = ::getpid()}, missing, limit_),
                     missing);
}

}  // namespace

abi::UniqueId id_of_one(const NcclLibrary& nccl) {
  abi::UniqueId id;
  const abi::Result result = nccl->get_unique_id(&id);
  if (result == abi::Result::success) return id;
  throw Error("NCCL gives no unique id: " + nccl.describe(result, nullptr) + "\nwhere: " + nccl.name() +
              "\ntry:   " + nccl.log_advice() + "; NCCL_SOCKET_IFNAME names the network interface to take");
}

abi::UniqueId meet(const Arrival& own, const NcclLibrary& nccl, store::Client& store, const std::string& key_prefix,
                   const io::Deadline& deadline) {
  Meeting meeting(own, store, key_prefix, deadline);
  if (own.rank == 0) meeting.give_id(id_of_one(nccl));
  meeting.come();
  meeting.wait_for_all();
  return meeting.take_id();
}

}  // namespace ddp::nccl_backend
