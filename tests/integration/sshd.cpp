#include "tests/integration/sshd.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/integration/free_port.hpp"

namespace ddp::test {
namespace {

constexpr const char* kServer = "/usr/sbin/sshd";  // it wants to be called by its path

void write_file(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void make_key(const std::string& path) {
  Job::Options options;
  options.program = "/usr/bin/ssh-keygen";
  Job job({"-q", "-t", "ed25519", "-N", "", "-f", path}, options);
  if (job.wait() != 0) throw std::runtime_error("ssh-keygen: " + job.err());
}

}  // namespace

std::string Sshd::why_not() {
  for (const auto* program : {kServer, "/usr/bin/ssh", "/usr/bin/ssh-keygen"})
    if (::access(program, X_OK) != 0)
      return std::string(program) + " is missing; the packages openssh-server and openssh-client have it";
  return {};
}

Sshd::Sshd(const Options& options, bool runs)
    : folder_(scratch_.path().string()),
      address_(options.address),
      port_(options.port.empty() ? free_port() : options.port) {
  for (const auto* key : {"host_key", "user_key", "other_key"}) make_key(folder_ + "/" + key);
  write_file(folder_ + "/authorized_keys", text_of_file(folder_ + "/user_key.pub"), 0600);
  const auto public_key = text_of_file(folder_ + "/host_key.pub");
  write_file(folder_ + "/known_hosts", "* " + public_key, 0600);
  write_file(folder_ + "/other_known_hosts", "* " + text_of_file(folder_ + "/other_key.pub"), 0600);
  auto text = "Port " + port_ + "\nListenAddress " + address_ + "\nHostKey " + folder_ +
              "/host_key\nAuthorizedKeysFile " + folder_ +
              "/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n"
              "PasswordAuthentication no\nKbdInteractiveAuthentication no\n" +
              options.arguments;
  if (!options.login.empty()) {
    write_file(folder_ + "/login", options.login + "\nexec sh -c \"$SSH_ORIGINAL_COMMAND\"\n", 0755);
    text += "ForceCommand sh " + folder_ + "/login\n";
  }
  write_file(folder_ + "/sshd_config", text, 0600);
  if (::geteuid() == 0) std::filesystem::create_directories("/run/sshd");
  if (!runs) return;
  Job::Options job;
  job.program = kServer;
  server_.emplace(std::vector<std::string>{"-D", "-e", "-f", folder_ + "/sshd_config"}, job);
  if (!server_->prints("Server listening")) throw std::runtime_error("sshd: " + server_->err());
}

std::string Sshd::command() const { return std::string(kServer) + " -D -e -f " + folder_ + "/sshd_config"; }

std::string Sshd::ssh_arguments(const std::string& others) const {
  const auto path = folder_ + "/ssh_config";
  write_file(path,
             others + "\nHost a b c d\n  HostName " + address_ + "\nHost *\n  Port " + port_ + "\n  IdentityFile " +
                 folder_ + "/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile " + folder_ +
                 "/known_hosts\n  StrictHostKeyChecking yes\n  GlobalKnownHostsFile /dev/null\n",
             0600);
  return "--ssh-args=-F " + path;
}

}  // namespace ddp::test
