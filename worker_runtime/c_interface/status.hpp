// How errors leave the C interface: every function of it runs inside call(), so no exception passes.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <ddp/ddp.h>

namespace ddp::c_interface {

// What a callback of the program returned instead of DDP_OK: the call that made it returns the same.
struct CallbackFailed {
  ddp_status status;
};

// Keeps the text and the ranks of an error for this thread's ddp_last_error(). Returns its status.
ddp_status record(const std::exception_ptr& error) noexcept;

template <class Body>
ddp_status call(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return DDP_OK;
  } catch (...) {
    return record(std::current_exception());
  }
}

// Runs a callback that may say why it fails. Returns its status; `text` is what it said, or else that `what` returned
// that status. ddp_last_error() has the same.
template <class Callback>
ddp_status call_back(const char* what, std::string& text, Callback&& callback) {
  ddp_set_last_error("");
  const ddp_status status = std::forward<Callback>(callback)();
  if (status == DDP_OK) return DDP_OK;
  text = ddp_last_error();
  if (text.empty()) {
    text = std::string(what) + " returned the status " + std::to_string(status);
    ddp_set_last_error(text.c_str());
  }
  return status;
}

}  // namespace ddp::c_interface
