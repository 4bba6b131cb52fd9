# Flags that every target of this project shares; none of them reaches a program that uses the installed package.

add_library(project_options INTERFACE)
target_compile_options(project_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast
                                                 -Werror)
if(CMAKE_UNITY_BUILD)
  # Sources that are compiled together see each other's types and names. -DCMAKE_UNITY_BUILD=OFF compiles each by
  # itself, with these warnings.
  target_compile_options(project_options INTERFACE -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
# Every header is included from the root of the tree: #include "rendezvous/store/codec.hpp", <ddp/ddp.hpp>.
target_include_directories(project_options INTERFACE ${PROJECT_SOURCE_DIR})

# Boost.Asio's coroutines; GCC 12's warnings about its own coroutine frames are false alarms.
add_library(project_asio INTERFACE)
find_package(Boost 1.81 REQUIRED)
target_link_libraries(project_asio INTERFACE Boost::headers Threads::Threads)
target_compile_definitions(project_asio INTERFACE BOOST_ASIO_NO_DEPRECATED)
if(DDP_SANITIZE MATCHES thread)
  # ThreadSanitizer does not know fences, and GCC says so as an error; a loop with one thread needs none.
  target_compile_definitions(project_asio INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

if(DDP_SANITIZE)
  add_compile_options(-fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DDP_SANITIZE} $<$<CXX_COMPILER_ID:Clang>:-fuse-ld=lld>)
  # GCC sees values that are not initialised where the sanitizers' own code hides from it that they are.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  # GCC says by these names which sanitizer it compiles for; clang 14 does not.
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND DDP_SANITIZE MATCHES "(address|thread)")
    string(TOUPPER ${CMAKE_MATCH_1} sanitizer)
    add_compile_definitions(__SANITIZE_${sanitizer}__)
  endif()
  if(DDP_SANITIZE MATCHES thread)
    # It overlooks fences, and GCC warns of each: where there is one, it is beside atomics that it does see.
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
  if(DDP_SANITIZE MATCHES "undefined")
    # This check looks whether memory is readable by means of a pipe, and takes it for broken where descriptors have run
    # out, which a test brings about.
    add_compile_options(-fno-sanitize=vptr)
    # AddressSanitizer finds what these two do, which take an eighth of the time that a library compiles.
    add_compile_options(-fno-sanitize=null,object-size)
    # What is loaded from a library of others is called with our names for its types.
    add_compile_options($<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
    # A quarter of the time in which Boost's templates compile, in code that casts no memory to types.
    target_compile_options(project_asio INTERFACE -fno-sanitize=alignment)
  endif()
endif()

if(DDP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "DDP_FUZZ needs clang, whose libFuzzer it uses: cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)  # it is led by which branches an input takes, in the libraries too
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # It keeps what was compiled with precompiled headers where it need not look at dates and definitions in them.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
                          ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
