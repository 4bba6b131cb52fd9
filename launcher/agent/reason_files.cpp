#include "launcher/agent/reason_files.hpp"

#include <boost/asio/post.hpp>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "launcher/output/line_tail.hpp"
#include "launcher/output/log_tree.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kEndLimit{2};  // at the end of ddprun: a caller waits for its file
constexpr std::size_t kTasksMax = 16;         // rounds whose files are to be read

Reasons reasons_in(const ReasonFiles::Paths& paths) {
  Reasons out;
  for (const auto& path : paths.error_files) out.messages.push_back(read_error_file(path));
  for (const auto& path : paths.stderr_files)
    out.stderr_tails.push_back(path.empty() ? std::vector<std::string>() : tail_of_file(path));
  // The worker wrote to the file itself, so nobody else has seen whether the disk took it.
  for (const auto& path : paths.stderr_files) {
    if (path.empty() || !out.stderr_lost.empty()) continue;
    const int error = try_writing(std::filesystem::path(path).parent_path().string());
    if (error != 0) out.stderr_lost = std::strerror(error);
  }
  return out;
}

}  // namespace

void ReasonFiles::read(Paths paths, std::function<void(const Reasons& reasons)> done) {
  auto reasons = std::make_shared<Reasons>();
  const auto tell = [reasons, done = std::move(done)] { done(*reasons); };
  if (!run(
          reading_, [reasons, paths = std::move(paths)] { *reasons = reasons_in(paths); }, tell))
    boost::asio::post(io_, tell);
}

void ReasonFiles::pass_on(const RootCause& cause, const std::optional<std::string>& wanted_at) {
  if (!wanted_at || wanted_at->empty()) return;
  const auto work = [cause, path = *wanted_at] {
    pass_error_on({{}, cause.exit_code, cause.description}, path);
    if (!cause.error_file.empty()) pass_error_on(cause, path);
  };
  static_cast<void>(run(passing_, work, [] {}));  // the caller finds no file then
}

bool ReasonFiles::run(Thread& thread, std::function<void()> work, std::function<void()> done) {
  try {
    if (!thread) thread.emplace(io_, base::FileThread::Options{.end_limit = kEndLimit, .tasks_max = kTasksMax});
  } catch (const std::system_error&) {  // no thread is to be had
    return false;
  }
  return thread->post(std::move(work), std::move(done));
}

}  // namespace ddp::launcher
