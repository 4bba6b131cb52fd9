# ddp::torch: ddp/torch.hpp with libtorch. For projects that call find_package(Torch) before find_package(ddp).
if(TARGET torch AND NOT TARGET ddp::torch)
  add_library(ddp::torch INTERFACE IMPORTED)
  set_target_properties(ddp::torch PROPERTIES INTERFACE_LINK_LIBRARIES "ddp::ddp;torch")
endif()
