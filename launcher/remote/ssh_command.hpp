// The command lines of ssh.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/remote/hosts.hpp"

namespace ddp::launcher {

// Words as a shell makes them of a line, with quotes and backslashes, and nothing else. Throws UsageError.
std::vector<std::string> words_of(const std::string& line, const std::string& where);

// What logs in at the host and starts `program` (a path of ddprun) with --remote-node there; the ddprun of PATH, if
// there is no such file. `arguments` are the user's, which go before ours: ssh takes the first value of an option.
std::vector<std::string> ssh_command(const RemoteHost& host, const std::vector<std::string>& arguments,
                                     const std::string& program);

// What prints the configuration that ssh has for the host, and connects nowhere.
std::vector<std::string> ssh_configuration_command(const RemoteHost& host, const std::vector<std::string>& arguments);

// The address of the host in what that printed; empty: none.
std::string address_in_configuration(const std::string& printed);

// Whether the host is this machine by a name that means it: localhost, its loopback addresses, or `own_name`, also
// without its domain. ddprun starts there without ssh, as mpirun does, unless a user is named.
bool is_this_machine(const RemoteHost& host, const std::string& own_name);

}  // namespace ddp::launcher
