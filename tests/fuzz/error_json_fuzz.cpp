// The text of a worker's error.json, which may be anything. What is shown of it is one printable line, and what is
// passed on to the caller's file can be read there.
#include <string>
#include <string_view>

#include "base/printable.hpp"
#include "launcher/output/error_file.hpp"
#include "tests/fuzz/targets.hpp"

void ddp::fuzz::error_json(std::string_view input) {
  using namespace ddp::launcher;
  constexpr std::size_t kShownBytesMax = 400;
  const std::string text(input);
  const auto shown = error_message_of(text);
  require(shown.size() <= kShownBytesMax, "little is shown");
  require(ddp::base::is_printable(shown), "what is shown stays within its line");

  const auto passed_on = error_file_for_caller(text, {"", 7, "rank 5 ended"}, 1'700'000'000);
  const auto read_again = error_message_of(passed_on);
  require(shown.empty() || read_again == shown, "what the worker wrote is passed on");
  require(error_file_for_caller(passed_on, {"", 7, "rank 5 ended"}, 1'700'000'000) == passed_on,
          "what is passed on is taken as it is");
}
