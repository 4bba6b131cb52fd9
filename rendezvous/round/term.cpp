#include "rendezvous/round/term.hpp"

#include <sys/random.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "ddp/error.hpp"

namespace ddp::rendezvous {

RoundId begin_term(std::chrono::system_clock::time_point now, std::uint32_t random) {
  using namespace std::chrono;
  const auto since_1970 = now.time_since_epoch();
  const auto fraction = static_cast<std::uint64_t>((since_1970 % 1s) / 1ns);
  RoundId round;
  round.term = static_cast<std::uint64_t>(since_1970 / 1s);
  round.term_random = ((fraction << 32) / 1'000'000'000) << 32 | random;
  return round;
}

RoundId begin_term() {
  std::uint32_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random))
    throw Error("no random bits for the id of the round: " + std::generic_category().message(errno));
  return begin_term(std::chrono::system_clock::now(), random);
}

}  // namespace ddp::rendezvous
