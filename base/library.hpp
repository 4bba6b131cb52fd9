// A shared library that is loaded only where it is used, and given back.
#pragma once

#include <dlfcn.h>

#include <string>

namespace ddp::base {

class Library {
 public:
  explicit Library(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = ::dlerror();
  }
  ~Library() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }  // why it is not loaded

  // Sets `function` to the one of this name; false, and nullptr, where there is none.
  template <class Function>
  bool find(const char* name, Function*& function) const {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  void* handle_;
  std::string error_;
};

}  // namespace ddp::base
