// The objects of the C interface's handles that several of its sources use.
#pragma once

#include <ddp/ddp.h>

#include "ddp/process_group.hpp"
#include "worker_runtime/c_interface/handles.hpp"

namespace ddp::c_interface {

template <>
struct ObjectOf<ddp_group> {
  using type = ProcessGroup;
  static constexpr const char* kName = "ddp_group";
};

template <>
struct ObjectOf<ddp_work> {
  using type = Work;
  static constexpr const char* kName = "ddp_work";
};

}  // namespace ddp::c_interface
