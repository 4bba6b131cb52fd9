// What tests do with text.
#pragma once

#include <regex.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp::test {

// Empty where it can't be read. Of files under /proc too, of a process that ends meanwhile.
inline std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  try {
    return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {
    return {};
  }
}

inline int occurrences(const std::string& where, const std::string& what) {
  int count = 0;
  for (auto at = where.find(what); at != std::string::npos; at = where.find(what, at + what.size())) ++count;
  return count;
}

// All places in `where` that fit an extended regular expression, with the text of its groups from index 1 on.
// POSIX's, because <regex> adds seconds to the compilation of a test.
inline std::vector<std::vector<std::string>> matches(const std::string& where, const std::string& expression) {
  regex_t compiled;
  if (::regcomp(&compiled, expression.c_str(), REG_EXTENDED) != 0) throw std::invalid_argument(expression);
  std::vector<std::vector<std::string>> found;
  std::vector<regmatch_t> groups(compiled.re_nsub + 1);
  for (const char* at = where.c_str(); ::regexec(&compiled, at, groups.size(), groups.data(), 0) == 0;) {
    auto& texts = found.emplace_back();
    for (const auto& group : groups)
      texts.push_back(group.rm_so < 0 ? "" : std::string(at + group.rm_so, at + group.rm_eo));
    if (groups[0].rm_eo == groups[0].rm_so) break;  // an empty match would repeat for ever
    at += groups[0].rm_eo;
  }
  ::regfree(&compiled);
  return found;
}

}  // namespace ddp::test
