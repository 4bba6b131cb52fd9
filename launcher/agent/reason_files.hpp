// Reads why workers failed from the files that they left, and passes the root cause on to a launcher that started this
// one, which reads it from a file too.
//
// Any of these disks may stop answering, so threads do it and the event loop never waits: one for each of the two.
//
// Threads: the members are the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/file_thread.hpp"
#include "launcher/node/round_report.hpp"
#include "launcher/output/error_file.hpp"

namespace ddp::launcher {

class ReasonFiles {
 public:
  // The destructor waits for what was asked for, 2 s at most for either.
  explicit ReasonFiles(boost::asio::io_context& io) : io_(io) {}

  struct Paths {
    // Of failed workers, in the order of the failures; empty: none.
    std::vector<std::string> error_files, stderr_files;
  };

  // A file that can't be read gives no reason; nor do those of a round if threads have run out, or if the files of many
  // rounds wait for their disk already. `done` is called later, from the loop. Of a file 1 MiB is read at most.
  void read(Paths paths, std::function<void(const Reasons& reasons)> done);

  // Leaves the root cause in the file at `path`, if it can be written: first its description, then what the worker
  // wrote itself, whose disk may be another. Empty or no path: nobody wants it.
  void pass_on(const RootCause& cause, const std::optional<std::string>& path);

 private:
  using Thread = std::optional<base::FileThread>;
  [[nodiscard]] bool run(Thread& thread, std::function<void()> work, std::function<void()> done);

  boost::asio::io_context& io_;
  Thread reading_, passing_;  // each from its first use on
};

}  // namespace ddp::launcher
