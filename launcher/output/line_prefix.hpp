// The text before a worker's line on the console: torchrun's template, or ddprun's own short form.
//
// Pure: the time comes in.
#pragma once

#include <ctime>
#include <string>
#include <utility>
#include <vector>

namespace ddp::launcher {

constexpr const char* kTeePrefix = "[${role_name}${local_rank}]:";  // torchrun's, of every line of a tee'd stream
constexpr const char* kShortPrefix = "[${rank}] ";

// What stands for the variables of a template. Ranks are text, because a line may be that of many ("0-3,7").
struct PrefixFacts {
  std::string role_name;
  std::string rank;
  std::string local_rank;
  std::string hostname;
};

// ${role_name}, ${rank}, ${local_rank} and ${hostname} as torchrun has them, and ${time}; `$name` is the same, `$$` a
// dollar sign, and what is none of these stays as it is.
class LinePrefix {
 public:
  LinePrefix() = default;  // no prefix
  LinePrefix(const std::string& text_template, const PrefixFacts& facts);

  // At this moment, which only a template with ${time} looks at: local time as 2026-11-21 14:48:41.123.
  std::string text(const timespec& now) const;
  std::string text() const;  // now

 private:
  std::vector<std::string> parts_;  // the time stands between each two
};

// {0, 1, 2, 5} as "0-2,5". Requires ascending order.
std::string rank_ranges(const std::vector<int>& ranks);

}  // namespace ddp::launcher
