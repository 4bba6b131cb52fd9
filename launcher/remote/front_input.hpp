// Reads ddprun's own stdin for rank 0, one piece at a time: rank 0 may never read it, and there is no end of it.
//
// Nothing changes for whoever shares the descriptor: it is never made non-blocking, and a terminal is read only in the
// foreground.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string_view>

namespace ddp::launcher {

class FrontInput {
 public:
  // `read` gets one piece after each want(), and nothing at the end.
  FrontInput(boost::asio::io_context& io, std::function<void(std::string_view bytes)> read);

  void want();
  void continued();  // this process was in the background, and may be no longer
  void close();

 private:
  void read_once();

  boost::asio::posix::stream_descriptor stdin_;
  std::function<void(std::string_view bytes)> read_;
  bool is_terminal_, waits_ = false, in_background_ = false;
};

}  // namespace ddp::launcher
