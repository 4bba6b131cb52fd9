// Reads Slurm's short form of a list of host names: "n1", "n[1-3,7]", "rack[01-10]node[1-2],login".
//
// Pure. As `scontrol show hostnames` reads it: in the order given, doubles and the zeros before a number kept. Of
// several brackets in one name the last counts fastest, then the first, then the second, and so on. Text after the last
// bracket ("n[1-3]-ib") is taken too, which scontrol does not. What scontrol reads as something that nobody meant
// ("n[1-3", "n[1-]") is refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::slurm {

constexpr std::size_t kHostCountMax = 65'536;        // of one list; Slurm's own limit
constexpr std::size_t kHostListBytesMax = 1u << 20;  // the kernel passes on no variable of more than 128 KiB
constexpr std::size_t kHostNameBytesMax = 255;

// Throws InvalidArgument, in one line, with what is wrong; an empty list is no error.
std::vector<std::string> expand_host_list(std::string_view list);

}  // namespace ddp::slurm
