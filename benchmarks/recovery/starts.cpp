#include "benchmarks/recovery/starts.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <system_error>
#include <utility>

namespace ddp::benchmarks {

using Clock = std::chrono::steady_clock;

Nanoseconds now() { return Clock::now().time_since_epoch().count(); }

int be_worker(const char* path) {
  const int fifo = ::open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fifo < 0) return 0;
  char line[128];
  const char *rank = std::getenv("RANK"), *world_size = std::getenv("WORLD_SIZE");
  const int length = std::snprintf(line, sizeof line, "%lld %d %s %s\n", now(), static_cast<int>(::getpid()),
                                   rank != nullptr ? rank : "-1", world_size != nullptr ? world_size : "-1");
  if (::write(fifo, line, static_cast<std::size_t>(length)) != length) return 1;
  pollfd reader{fifo, 0, 0};  // POLLERR comes unasked
  while (::poll(&reader, 1, -1) < 0) {
  }
  return 0;
}

double ms_until_all_started(const Workers& workers, Nanoseconds since) {
  Nanoseconds last = since;
  for (const auto& worker : workers) last = std::max(last, worker.started);
  return static_cast<double>(last - since) / 1e6;
}

Starts::Starts(std::filesystem::path path) : path_(std::move(path)) {
  // Open for writing as well: else the end of the last worker would be an end of file.
  if (::mkfifo(path_.c_str(), 0600) != 0 || (fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC)) < 0)
    throw std::system_error(errno, std::generic_category(), path_);
}

Starts::~Starts() { ::close(fd_); }

Workers Starts::wait(int world_size, Nanoseconds since, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::map<int, Worker> found;
  while (static_cast<int>(found.size()) < world_size) {
    if (const auto end = text_.find('\n'); end != std::string::npos) {
      Worker worker;
      std::sscanf(text_.c_str(), "%lld %d %d %d", &worker.started, &worker.pid, &worker.rank, &worker.world_size);
      text_.erase(0, end + 1);
      if (worker.world_size == world_size && worker.started > since) found[worker.rank] = worker;
      continue;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd fifo{fd_, POLLIN, 0};
    if (left <= 0) return {};
    if (::poll(&fifo, 1, static_cast<int>(left)) <= 0) continue;
    char buffer[4096];
    if (const auto length = ::read(fd_, buffer, sizeof buffer); length > 0)
      text_.append(buffer, static_cast<std::size_t>(length));
  }
  Workers out;
  for (const auto& [rank, worker] : found) out.push_back(worker);
  return out;
}

}  // namespace ddp::benchmarks
