#!/usr/bin/env bash
# compiler_errors.sh COMPILER INCLUDE_FOLDER: what a program gets wrong in the types of a collective, the compiler says
# in words of the library. What is right compiles, as C++17 and as C++20.
set -eu
compiler=$1 include=$2
failed=0

# compile STANDARD STATEMENTS: what the compiler says of a function with them.
compile() {
  printf '%s\n' '#include <ddp/collectives.hpp>' '#include <ddp/objects.hpp>' '#include <array>' \
    '#include <string>' '#include <vector>' \
    '#if __cplusplus >= 202002L' '#include <span>' '#endif' 'struct Unknown { int number; };' \
    'void use(ddp::ProcessGroup& world) {' "$2" '}' |
    "$compiler" "-std=$1" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$include" -x c++ - 2>&1
}

# accepts STATEMENTS [STANDARD..]
accepts() {
  local statements=$1 standard said
  shift
  for standard in "${@:-c++17}"; do
    said=$(compile "$standard" "$statements") && continue
    printf '%s refuses %s:\n%s\n' "$standard" "$statements" "$said"
    failed=1
  done
}

# refuses STATEMENTS MESSAGE
refuses() {
  local said
  if said=$(compile c++17 "$1"); then
    echo "compiles: $1"
    failed=1
  elif ! grep -qF "$2" <<<"$said"; then
    printf 'of %s it does not say "%s" but\n%s\n' "$1" "$2" "$said"
    failed=1
  fi
}

accepts 'std::vector<float> v(3); std::array<double, 2> a{}; ddp::all_reduce(world, v); ddp::all_reduce(world, a);
  world.all_reduce(a); ddp::broadcast(world, a, 0); static_cast<void>(ddp::all_gather(world, v));
  static_cast<void>(ddp::all_gather(world, ddp::all_reduce(world, 1) + ddp::broadcast(world, 2, 0)));
  static_cast<void>(ddp::all_gather_object(world, ddp::broadcast_object(world, std::string("x"), 0)));' c++17 c++20
accepts 'std::vector<float> v(3); const std::span<float> s(v); ddp::all_reduce(world, s); world.all_reduce(s.first(1));
  ddp::broadcast(world, s.first(1), 0); static_cast<void>(ddp::all_gather(world, std::span<const float>(v)));' c++20

number='ddp: a collective of a number takes float, double,'
range='ddp: a collective of a range takes elements of the types float, double,'
refuses 'ddp::all_reduce(world, sizeof world);' "$number"
refuses 'ddp::all_reduce(world, Unknown{});' "$number"
refuses 'ddp::broadcast(world, 1.0L, 0);' "$number"
refuses 'static_cast<void>(ddp::all_gather(world, Unknown{}));' "$number"
refuses 'std::vector<std::size_t> v; ddp::all_reduce(world, v);' "$range"
refuses 'std::vector<bool> v; ddp::all_reduce(world, v);' 'For std::vector<bool>: std::vector<std::uint8_t>'
refuses 'std::string s; ddp::broadcast(world, s, 0);' "$range"
refuses 'static_cast<void>(ddp::all_gather(world, std::vector<Unknown>(2)));' "$range"
refuses 'const std::vector<float> v(2); ddp::all_reduce(world, v);' 'the range, which is const'
refuses 'ddp::all_reduce(world, std::vector<float>(2));' 'the range, which is a temporary'
refuses 'static_cast<void>(ddp::all_gather(world, true));' 'use std::uint8_t'
refuses 'static_cast<void>(ddp::broadcast_object(world, Unknown{1}, 0));' 'ddp::Serializer<T>'
refuses 'static_cast<void>(ddp::all_gather_object(world, 1));' 'ddp::Serializer<T>'
exit "$failed"
