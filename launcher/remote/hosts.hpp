// The hosts of a job, as users write them: --hosts=a,b:8,user@[fe80::1]:4, or the lines of a host file.
//
// Pure. mpirun's grammar, and more: a user, IPv6 addresses in brackets, and ranges as Slurm has them (n[01-16]).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ddp::launcher {

constexpr std::size_t kHostsMax = 256;  // of one job: each has an ssh of its own here

struct RemoteHost {
  std::string user;            // empty: as ssh's configuration says
  std::string name;            // or an address; an IPv6 address without brackets
  std::optional<int> workers;  // empty: as --nproc-per-node says

  // "user@name", as ssh takes it. Messages name the host by this too.
  std::string target() const { return user.empty() ? name : user + "@" + name; }

  friend bool operator==(const RemoteHost&, const RemoteHost&) = default;
};

// `where` is for messages: "--hosts=a,b". A host that is named twice has the sum of its workers. Throws UsageError.
std::vector<RemoteHost> hosts_of_list(const std::string& list, const std::string& where);

// One host in a line: `[user@]name [slots=N]`; `#` begins a comment. Adds to `notices` which settings have no effect.
// Throws UsageError, which names the line.
std::vector<RemoteHost> hosts_of_file(const std::string& text, const std::string& path,
                                      std::vector<std::string>& notices);

}  // namespace ddp::launcher
