// The worker of agents_benchmark: writes a line into the FIFO that is its argument when it has started, and when it is
// told to stop. Ends with 0 then, or once the benchmark is gone. Of the C library alone, so that a thousand start
// quickly.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

namespace {

// `S` or `T`, the time as std::chrono::steady_clock has it, the pid and the rank.
void say(int fifo, char what) {
  const char* rank = ::getenv("RANK");
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  char line[64];
  const int length = ::snprintf(line, sizeof line, "%c %lld%09ld %d %s\n", what, static_cast<long long>(time.tv_sec),
                                time.tv_nsec, ::getpid(), rank != nullptr ? rank : "-1");
  if (::write(fifo, line, static_cast<size_t>(length)) != length) ::_exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  const int signals = ::signalfd(-1, &stop, SFD_CLOEXEC);
  const int fifo = argc == 2 ? ::open(argv[1], O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
  if (fifo < 0) return 0;
  ::fcntl(fifo, F_SETFL, 0);  // a thousand may write at once
  say(fifo, 'S');
  pollfd waits[] = {{fifo, 0, 0}, {signals, POLLIN, 0}};  // POLLERR comes unasked
  while (::poll(waits, 2, -1) < 0) {
  }
  if (waits[1].revents != 0) say(fifo, 'T');
  return 0;
}
