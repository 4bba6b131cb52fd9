// How workers are bound to the machine's cores and memory.
#pragma once

namespace ddp::launcher {

struct BindingOptions {
  enum class Mode { none, node, socket, exclusive, core_complex };  // --numa-binding
  Mode mode = Mode::none;
  bool display = false;  // --display-binding: say which worker got what
};

}  // namespace ddp::launcher
