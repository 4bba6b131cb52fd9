#include "tests/fake_gpu/nccl_log.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "base/host_name.hpp"

namespace ddp::fake_gpu {

namespace {

struct Log {
  std::mutex mutex;
  std::string last_error;
  bool is_open = false;
  FILE* file = nullptr;  // null: no lines are wanted
};

// Never destroyed: threads of communicators may still run when the process exits.
Log& log_of_process() {
  static Log& one = *new Log;
  return one;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// %h is the host's name, %p the process's id.
std::string expanded(const std::string& pattern) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = std::string_view(pattern).substr(i);
    const bool is_host = rest.starts_with("%h");
    if (!is_host && !rest.starts_with("%p")) {
      path += pattern[i];
      continue;
    }
    path += is_host ? base::host_name() : std::to_string(::getpid());
    ++i;
  }
  return path;
}

FILE* open_log() {
  const std::string level = variable("NCCL_DEBUG");
  if (level != "WARN" && level != "INFO" && level != "TRACE") return nullptr;
  const std::string path = expanded(variable("NCCL_DEBUG_FILE"));
  FILE* const file = path.empty() ? nullptr : std::fopen(path.c_str(), "w");
  if (file == nullptr) return stdout;
  ::setlinebuf(file);
  return file;
}

}  // namespace

void set_last_error(const std::string& text) {
  Log& log = log_of_process();
  const std::lock_guard lock(log.mutex);
  log.last_error = text;
  if (!log.is_open) {
    log.is_open = true;
    log.file = open_log();
  }
  if (log.file == nullptr) return;
  std::fprintf(log.file, "\n%s:%d:%d [0] fake_nccl.cc:1 NCCL WARN %s\n", base::host_name().c_str(),
               static_cast<int>(::getpid()), static_cast<int>(::gettid()), text.c_str());
}

std::string last_error_text() {
  Log& log = log_of_process();
  const std::lock_guard lock(log.mutex);
  return log.last_error;
}

}  // namespace ddp::fake_gpu
