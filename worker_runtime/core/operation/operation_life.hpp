// How far one operation of a group has come, the same for all backends.
//
//   submitted ---> started ---> done
//        |            |-------> failed
//        |            `-------> refused, until the other ranks have seen this rank in it
//        `-> refused, failed
//
// Each step says whether it is news. If it is, the flight recorder is told of it. The first end counts.
//
// Pure, and inline because a small call counts every instruction.
#pragma once

#include <cstdint>

namespace ddp::core {

class OperationLife {
 public:
  enum class Stage : std::uint8_t {
    submitted,  // called; waits for its turn
    started,    // its turn has come: on a device once all ahead of it is done
    done,
    failed,   // its group failed
    refused,  // the other ranks never saw it
  };

  Stage stage() const { return stage_; }
  bool has_started() const { return has_started_; }  // also of one that has ended
  bool has_ended() const { return stage_ != Stage::submitted && stage_ != Stage::started; }

  // The other ranks have seen this rank in the operation, so it can no longer be refused.
  void join() { has_joined_ = true; }
  bool has_joined() const { return has_joined_; }

  bool start() {
    if (stage_ != Stage::submitted) return false;
    stage_ = Stage::started;
    has_started_ = true;
    return true;
  }

  // Requires that it has started.
  bool complete() { return stage_ == Stage::started && end(Stage::done); }

  bool fail() { return !has_ended() && end(Stage::failed); }

  bool refuse() { return !has_ended() && !has_joined_ && end(Stage::refused); }

 private:
  bool end(Stage stage) {
    stage_ = stage;
    return true;
  }

  Stage stage_ = Stage::submitted;
  bool has_started_ = false;
  bool has_joined_ = false;
};

}  // namespace ddp::core
