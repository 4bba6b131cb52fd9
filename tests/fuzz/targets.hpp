// What is fuzzed: each function takes any input, and aborts if something that its file promises does not hold.
//
// tests/fuzz/corpus/<target> has the inputs that are kept. docs/testing.md says how to run a fuzzer.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <string_view>

namespace ddp::fuzz {

void checkpoint(std::string_view input);
void cpu_handshake(std::string_view input);
void error_json(std::string_view input);
void first_bytes(std::string_view input);
void membership(std::string_view input);
void slurm_lists(std::string_view input);
void store_parser(std::string_view input);
void worker_link(std::string_view input);

inline void require(bool ok, const char* what) {
  if (ok) return;
  std::cerr << "does not hold: " << what << '\n';
  std::abort();
}

// Takes the next byte of the input; 0 at its end.
inline unsigned char take_byte(std::string_view& input) {
  if (input.empty()) return 0;
  const auto byte = static_cast<unsigned char>(input.front());
  input.remove_prefix(1);
  return byte;
}

// Takes as many bytes as the next byte says, or as there are.
inline std::string_view take_text(std::string_view& input) {
  const std::size_t size = take_byte(input);
  const auto text = input.substr(0, size);
  input.remove_prefix(text.size());
  return text;
}

}  // namespace ddp::fuzz
