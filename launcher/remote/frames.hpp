// What the ddprun at which a job is started (the front) and a host's ddprun say to each other over ssh.
//
// Pure. The host's ddprun prints a mark first; what comes before it is from ssh or from the login shell. From then on
// each direction is a row of frames: one byte for the kind, four for the length (big-endian), then so many bytes.
// The front sends nothing before it has seen the mark, so the token reaches nobody but a ddprun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

// Both sides pass over frames of a kind that they do not know. The number grows with each change of the frames that
// such a side does not work with.
inline constexpr std::string_view kRemoteMark = "[ddprun on this host, protocol 1]\n";

enum class FrameKind : unsigned char {
  // To a host, before the start.
  directory = 'd',  // to run in
  variable = 'v',   // "NAME=value"
  token = 't',      // that the node needs; one or two lines
  argument = 'a',   // one of ddprun's own, in order
  start = 's',      // the grace in milliseconds
  // Before the start, to a host: its report may come as such a frame. An older ddprun writes it to stderr in any case.
  // From a host: how the job has ended, in that ddprun's words; one frame, before `ended`.
  report = 'r',
  // To a host, after the start.
  input = 'i',   // of rank 0; an empty one is its end. The next one may follow after input_taken
  signal = 'k',  // a number, for the host's ddprun
  alive = 'l',   // the front lives
  // From a host.
  out = 'o',          // that ddprun's stdout
  err = 'e',          // that ddprun's stderr
  input_taken = 'n',  // more input may come
  failed = 'f',       // why ddprun could not be started
  ended = 'x',        // ddprun's exit code
};

struct Frame {
  FrameKind kind{};
  std::string bytes{};
};

constexpr std::size_t kFrameBytesMax = 1u << 20;  // more than the kernel takes as one argument or variable

// Requires that there are kFrameBytesMax bytes at most.
std::string encoded(FrameKind kind, std::string_view bytes);

class FrameReader {
 public:
  // All frames that are complete now. Empty for good, once a length is beyond the limit: is_broken().
  std::vector<Frame> feed(std::string_view bytes);
  bool is_broken() const { return broken_; }

 private:
  std::string unread_;
  bool broken_ = false;
};

// Looks for the mark in what comes from a host.
class MarkFinder {
 public:
  // What came before the mark, to be shown; at most kUnmarkedBytesMax bytes are kept back.
  std::string feed(std::string_view bytes);

  // What came behind the mark, once it has come.
  std::optional<std::string> take_rest();

  std::string take_unmarked();  // what was kept back, at the end

 private:
  std::string unread_;
  bool found_ = false;
};

}  // namespace ddp::launcher
