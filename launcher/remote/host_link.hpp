// The front's connection with one host: ssh, or on this machine the process itself.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/output/whole_lines.hpp"
#include "launcher/remote/frames.hpp"
#include "launcher/remote/piped_child.hpp"

namespace ddp::launcher {

class HostLink {
 public:
  struct End {
    std::optional<int> exit_code{};  // of the host's ddprun; empty: it was not told
    std::string reason{};            // why not, in ssh's own words where there are any; or why ddprun did not start
    bool was_connected = false;
  };
  struct Handlers {
    std::function<void()> connected;
    std::function<void(int stream, std::string_view bytes)> output;  // of the host's ddprun
    std::function<void(std::string_view text)> report;               // of that ddprun, on how the job has ended
    std::function<void(std::string_view line)> said;                 // by ssh or by the login shell
    std::function<void()> input_taken;
    std::function<void(const End& end)> ended;  // once, and last
  };

  HostLink(boost::asio::io_context& io, Handlers handlers) : io_(io), handlers_(std::move(handlers)), timer_(io) {}
  HostLink(const HostLink&) = delete;

  // Throws std::system_error where no process can be started. A host that has not answered within `limit` is given up.
  void start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
             std::chrono::milliseconds limit);

  void send(FrameKind kind, std::string_view bytes);
  bool is_connected() const { return connected_ && !ended_; }
  bool is_over() const { return ended_; }

  // Ends the node there: its ddprun sees that the connection is closed.
  void close(const std::string& why);

 private:
  void take_out(std::string_view bytes);
  void take_err(std::string_view bytes);
  void take(const Frame& frame);
  void say(std::string_view line);
  void tell_held_lines(std::size_t but_last);
  void end(int wait_status);
  std::string reason_of(int wait_status) const;

  boost::asio::io_context& io_;
  Handlers handlers_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<PipedChild> child_;
  MarkFinder mark_;
  FrameReader frames_;
  WholeLines login_lines_, ssh_lines_;
  std::vector<std::string> held_;  // lines from before the connection: shown once it is known what came of it
  std::string last_line_;          // of ssh
  std::string why_closed_, failure_;
  std::optional<int> exit_code_;
  bool connected_ = false, ended_ = false;
};

}  // namespace ddp::launcher
