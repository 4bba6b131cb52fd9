# ddp_link_for_old_glibc(target [CUDA_RUNTIME]): what is linked here runs on glibc 2.28 and newer, on x86-64, however
# new the glibc is that it is linked on (rendezvous/glibc). Elsewhere, and under sanitizers, which need their own names,
# it does nothing.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("#include <features.h>
#if !defined(__GLIBC__) || !defined(__x86_64__) || defined(__ILP32__)
#error
#endif
int main() {}" DDP_HAVE_X86_64_GLIBC)

if(DDP_HAVE_X86_64_GLIBC AND NOT DDP_SANITIZE)
  enable_language(ASM)
  set(folder ${PROJECT_SOURCE_DIR}/rendezvous/glibc)
  add_library(ddp_glibc OBJECT ${folder}/moved_functions.S ${folder}/newer_functions.cpp)
  add_library(ddp_glibc_program OBJECT ${folder}/program.cpp)
  add_library(ddp_glibc_cuda OBJECT ${folder}/moved_functions_of_cuda.S)
  foreach(part ddp_glibc ddp_glibc_program ddp_glibc_cuda)
    target_include_directories(${part} PRIVATE ${PROJECT_SOURCE_DIR})
    target_compile_options(${part} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Werror>)
  endforeach()
endif()

function(ddp_link_for_old_glibc target)
  if(NOT TARGET ddp_glibc)
    return()
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:ddp_glibc>)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:ddp_glibc_program>)
  endif()
  # Before 2.34 the moved functions are in libraries of their own, of which a newer glibc has empty ones.
  set(libraries -l:libpthread.so.0,-l:libdl.so.2)
  if(CUDAToolkit_FOUND AND "CUDA_RUNTIME" IN_LIST ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:ddp_glibc_cuda>)
    string(APPEND libraries ,-l:librt.so.1)
  endif()
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:-Wl,--push-state,--no-as-needed,${libraries},--pop-state>)
endfunction()
