#include "worker_runtime/c_interface/status.hpp"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"

namespace ddp::c_interface {

namespace {

struct LastError {
  std::string text;
  std::vector<int> ranks;
  bool is_text_lost = false;  // there was no memory for it
};

// Calls may come after the destruction of this thread's objects: from handlers of atexit(), and from destructors of
// other objects of the thread. They find no error then, and make another object, which is not destroyed.
thread_local LastError* present_error = nullptr;

struct ErrorOwner {
  ~ErrorOwner() { delete std::exchange(present_error, nullptr); }
};

LastError& last_error() {
  if (present_error == nullptr) {
    present_error = new LastError;
    thread_local const ErrorOwner owner;
    static_cast<void>(owner);
  }
  return *present_error;
}

void keep(const char* text, const std::vector<int>& ranks = {}) noexcept {
  LastError& last = last_error();
  try {
    last.ranks = ranks;
    last.text = text;
    last.is_text_lost = false;
  } catch (const std::bad_alloc&) {
    last.ranks.clear();
    last.is_text_lost = true;
  }
}

ddp_status keep_as(ddp_status status, const std::exception& error, const std::vector<int>& ranks = {}) noexcept {
  keep(error.what(), ranks);
  return status;
}

}  // namespace

ddp_status record(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const CallbackFailed& failed) {
    return failed.status;  // its text is kept already
  } catch (const InvalidArgument& known) {
    return keep_as(DDP_INVALID_ARGUMENT, known);
  } catch (const MismatchError& known) {
    return keep_as(DDP_MISMATCH, known);
  } catch (const TimeoutError& known) {
    return keep_as(DDP_TIMEOUT, known, known.ranks());
  } catch (const RankFailure& known) {
    return keep_as(DDP_RANK_FAILURE, known, known.ranks());
  } catch (const RoundOver& known) {
    return keep_as(DDP_ROUND_OVER, known);
  } catch (const AbortedError& known) {
    return keep_as(DDP_ABORTED, known);
  } catch (const GradientError& known) {
    return keep_as(DDP_GRADIENT_ERROR, known);
  } catch (const CheckpointError& known) {
    return keep_as(DDP_CHECKPOINT_ERROR, known);
  } catch (const StoreError& known) {
    return keep_as(DDP_STORE_ERROR, known);
  } catch (const std::bad_alloc&) {
    keep("no memory");
    return DDP_OUT_OF_MEMORY;
  } catch (const std::exception& other) {
    return keep_as(DDP_ERROR, other);
  } catch (...) {
    keep("an exception of an unknown type");
    return DDP_ERROR;
  }
}

}  // namespace ddp::c_interface

const char* ddp_last_error(void) {
  const auto& last = ddp::c_interface::last_error();
  return last.is_text_lost ? "no memory for the text of the error" : last.text.c_str();
}

size_t ddp_last_error_ranks(int32_t* ranks, size_t capacity) {
  const auto& known = ddp::c_interface::last_error().ranks;
  if (ranks != nullptr) std::copy_n(known.begin(), std::min(known.size(), capacity), ranks);
  return known.size();
}

void ddp_set_last_error(const char* text) { ddp::c_interface::keep(text != nullptr ? text : ""); }

void ddp_set_last_error_of_ranks(const char* text, const int32_t* ranks, size_t rank_count) {
  try {
    ddp::c_interface::keep(text != nullptr ? text : "",
                           ranks != nullptr ? std::vector<int>(ranks, ranks + rank_count) : std::vector<int>());
  } catch (const std::bad_alloc&) {
    ddp_set_last_error(text);
  }
}

const char* ddp_version(void) { return DDP_LIBRARY_VERSION; }
