// ddp-rendezvous: where the processes of a job find each other.
#include <fcntl.h>
#include <signal.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/daemon/command_line.hpp"
#include "rendezvous/daemon/serve_jobs.hpp"
#include "rendezvous/daemon/serve_store.hpp"
#include "rendezvous/security/token.hpp"

namespace {

using namespace ddp::rendezvous;

// A standard descriptor that the caller closed would become the next socket that is opened, and be written to.
void fill_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) std::abort();
}

// Ends as the signal would have ended it, so that a shell sees 128 + n and a service manager a clean stop.
int end_by_signal(int number) {
  ::signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  ::raise(number);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  return 128 + number;  // process 1 of a container survives that
}

int run(const std::vector<std::string>& arguments) {
  const auto token = ddp::security::take_token_variable();
  const auto what = parse_command_line(arguments, DDPRUN_VERSION);
  if (const auto* show = std::get_if<ShowText>(&what)) return (std::cout << show->text).flush() ? 0 : 1;
  if (const auto* store = std::get_if<ServeStore>(&what)) return end_by_signal(serve_store(*store));
  return end_by_signal(serve_jobs(std::get<ServeJobs>(what), token));
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  try {
    return run({argv + 1, argv + argc});
  } catch (const CommandLineError& error) {
    std::cerr << "error: " << error.what()
              << "\nwhere: the command line of ddp-rendezvous\ntry:   `ddp-rendezvous --help`, `ddp-rendezvous store "
                 "--help`\n";
    return 2;
  } catch (const ddp::InvalidArgument& error) {
    std::cerr << "error: " << error.what()
              << "\nwhere: the command line of ddp-rendezvous\ntry:   a folder that exists "
              << "and that this user can write to\n";
    return 2;
  } catch (const ddp::security::TokenError& error) {
    std::cerr << "error: " << error.what() << "\nwhere: " << error.where() << "\ntry:   " << error.try_this() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr
        << "error: " << error.what()
        << "\nwhere: starting ddp-rendezvous\ntry:   `ss -ltnp` shows who listens where, `ip address` the addresses "
           "of this host\n";
    return 1;
  }
}
