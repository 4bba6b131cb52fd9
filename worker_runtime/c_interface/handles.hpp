// What stands behind the handles of the C interface.
//
// A handle is a number that no other handle of the process ever has, so one that was destroyed, or is of another kind,
// is told from a live one without reading any memory. Destruction takes the object out of the table; a call that uses
// the object on another thread keeps it alive until it returns.
//
// Threads: any.
// Fork:    a forked child may not use the handles of its parent: their objects have threads and locks of the parent.
//          The child begins with a table of its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <ddp/ddp.h>

#include "base/process_wide.hpp"
#include "ddp/error.hpp"

namespace ddp::c_interface {

// ObjectOf<Handle>: `type`, what the handle stands for, and `kName`, the handle's type for messages.
template <class Handle>
struct ObjectOf;

inline std::uintptr_t next_handle_number() {
  static_assert(sizeof(std::uintptr_t) == sizeof(std::uint64_t), "the numbers must not run out");
  static std::atomic<std::uintptr_t> last{0};
  return ++last;
}

// Where the handles of this process begin: those below are its parent's.
struct HandleNumbers {
  const std::uintptr_t first = next_handle_number();
};

template <class Handle>
class Handles {
 public:
  using Object = typename ObjectOf<Handle>::type;

  // This process's.
  static Handles& all() { return base::process_wide<Handles>(); }

  Handle add(Object object) {
    auto shared = std::make_shared<Object>(std::move(object));
    base::process_wide<HandleNumbers>();
    const std::uintptr_t number = next_handle_number();
    const std::lock_guard lock(mutex_);
    objects_.emplace(number, std::move(shared));
    return reinterpret_cast<Handle>(number);
  }

  std::shared_ptr<Object> find(Handle handle) {
    const std::lock_guard lock(mutex_);
    return at(handle)->second;
  }

  // The object ends when the result does, unless another call still uses it.
  std::shared_ptr<Object> take(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = at(handle);
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  using Objects = std::unordered_map<std::uintptr_t, std::shared_ptr<Object>>;

  typename Objects::iterator at(Handle handle) {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    const auto found = objects_.find(number);
    if (found != objects_.end()) return found;
    const std::string what = std::string("this ") + ObjectOf<Handle>::kName;
    if (handle != nullptr && number < base::process_wide<HandleNumbers>().first) {
      throw InvalidArgument(what + " is of the parent of this forked child (pid " + std::to_string(::getpid()) +
                            ")\ntry:   call it in the process that made it, or make another one here");
    }
    throw InvalidArgument(what + (handle == nullptr ? " is NULL" : " was destroyed, or is no such handle") +
                          "\ntry:   a handle that a function of libddp gave, before its destruction");
  }

  std::mutex mutex_;
  Objects objects_;
};

template <class Handle>
std::shared_ptr<typename ObjectOf<Handle>::type> object_of(Handle handle) {
  return Handles<Handle>::all().find(handle);
}

// Makes a handle where the program wants it.
template <class Handle>
void give(Handle* place, typename ObjectOf<Handle>::type object) {
  *place = Handles<Handle>::all().add(std::move(object));
}

template <class Handle>
void destroy(Handle handle) {
  static_cast<void>(Handles<Handle>::all().take(handle));
}

}  // namespace ddp::c_interface
