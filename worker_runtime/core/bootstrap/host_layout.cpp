#include "worker_runtime/core/bootstrap/host_layout.hpp"

#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "base/boot_id.hpp"
#include "ddp/error.hpp"

namespace ddp::core {

namespace {

// "4:4026531840", which no other namespace of this kernel has at the same time; empty where it is not told.
std::string namespace_text(const char* kind) {
  struct stat status {};
  if (::stat((std::string("/proc/self/ns/") + kind).c_str(), &status) != 0) return "";
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

}  // namespace

HostLayout::HostLayout(std::vector<int> host_of) : host_of_(std::move(host_of)) {
  for (int rank = 0; rank < size(); ++rank) {
    const int host = this->host_of(rank);
    if (host < 0 || host > host_count()) throw InvalidArgument("the hosts of the ranks are not numbered in order");
    if (host == host_count()) ranks_of_.emplace_back();
    index_of_.push_back(static_cast<int>(ranks_of(host).size()));
    ranks_of_[static_cast<std::size_t>(host)].push_back(rank);
  }
  for (const auto& ranks : ranks_of_) {
    first_place_.push_back(rank_at_.size());
    rank_at_.insert(rank_at_.end(), ranks.begin(), ranks.end());
  }
}

HostLayout HostLayout::from_identities(const std::vector<std::string>& identities) {
  std::map<std::string, int> number_of;
  std::vector<int> host_of;
  for (const std::string& identity : identities) {
    host_of.push_back(number_of.emplace(identity, static_cast<int>(number_of.size())).first->second);
  }
  return HostLayout(std::move(host_of));
}

// An abstract unix socket is seen throughout one network namespace, and users are compared within one user namespace.
// The boot id alone would not tell clones of a virtual machine apart.
std::string host_identity() {
  const std::string boot = base::boot_id();
  const std::string network = namespace_text("net");
  const std::string users = namespace_text("user");
  if (boot.empty() || network.empty()) {
    unsigned long own = 0;  // nobody can be told to share a host with this process
    static_cast<void>(::getrandom(&own, sizeof own, 0) == sizeof own);
    return "alone " + std::to_string(own) + " " + std::to_string(::getpid());
  }
  utsname names{};
  ::uname(&names);
  return boot + " " + network + " " + users + " " + names.nodename;
}

}  // namespace ddp::core
