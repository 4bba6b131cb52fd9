#include "tests/guide/page.hpp"

#include <cstring>
#include <set>
#include <sstream>

#include "tests/text.hpp"

namespace ddp::test {
namespace {

std::string first_match(const std::string& where, const std::string& expression) {
  const auto found = matches(where, expression);
  return found.empty() ? "" : found[0].at(1);
}

void replace_all_of(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

bool is_one_of(char letter, const char* letters) { return letter != 0 && std::strchr(letters, letter) != nullptr; }

// The length of a number at a place, such as 12, 1.25 or the 16 hexadecimal digits of a random name; 0 for none.
std::size_t number_at(const std::string& text, std::size_t from) {
  constexpr std::size_t kRandomDigitsMin = 16;
  auto end = from;
  while (end < text.size() && is_one_of(text[end], "0123456789abcdef")) ++end;
  if (end - from >= kRandomDigitsMin) return end - from;
  for (end = from; end < text.size() && is_one_of(text[end], "0123456789"); ++end) {
  }
  if (end > from && end + 1 < text.size() && text[end] == '.' && is_one_of(text[end + 1], "0123456789"))
    return end + 1 - from + number_at(text, end + 1);
  return end - from;
}

// One blank between words, `#` for a number, `# s` for a duration, `(# s)` for several in brackets.
std::string comparable(std::string line, const Names& names) {
  for (const auto& [here, in_pages] : names) replace_all_of(line, here, in_pages);
  std::string result;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (const auto length = number_at(line, i); length > 0) {
      result += '#';
      i += length - 1;
    } else if (line[i] != ' ' || (!result.empty() && result.back() != ' ')) {
      result += line[i];
    }
  }
  while (!result.empty() && is_one_of(result.back(), " \r")) result.pop_back();
  for (const char* unit : {"# us", "# ms", "# min", "# h"}) replace_all_of(result, unit, "# s");
  if (const auto end = result.find("# s)"), begin = result.rfind('(', end);
      end != std::string::npos && begin != std::string::npos)
    result.replace(begin, end - begin, "(");
  return result.rfind("[#] ", 0) == 0 ? result.substr(4) : result;
}

}  // namespace

std::vector<PageBlock> blocks_of(const std::string& page) {
  std::vector<PageBlock> blocks;
  std::istringstream lines(page);
  std::string line, paragraph, language;
  bool is_inside = false, is_paragraph_over = false;
  PageBlock block{};
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.rfind("```", 0) != 0) {
      if (is_inside) {
        block.text += line + '\n';
      } else if (line.empty()) {
        is_paragraph_over = true;
      } else {
        if (is_paragraph_over) paragraph.clear();
        is_paragraph_over = false;
        paragraph += line + ' ';
      }
      continue;
    }
    is_inside = !is_inside;
    if (is_inside) {
      language = line.substr(3);
      block = {.kind = PageBlock::Kind::file, .name = {}, .text = {}, .line = number + 1, .not_run = {}};
      continue;
    }
    const std::string file = first_match(paragraph, "[Ss]ave this as `([^`]+)`");
    if (!file.empty()) {
      block.name = file;
    } else if (language == "sh") {
      block.kind = PageBlock::Kind::commands;
      block.name = first_match(block.text, "^# on (node[0-9]+)\n");
      block.not_run = first_match(paragraph, "\\(not run by the tests: ([^)]+)\\)");
    } else if (language == "text" && !blocks.empty() && blocks.back().kind == PageBlock::Kind::commands) {
      block.kind = PageBlock::Kind::output;
    } else {
      language.clear();  // an illustration
    }
    if (!language.empty()) blocks.push_back(block);
    paragraph.clear();
  }
  return blocks;
}

std::vector<std::string> inline_commands_of(const std::string& page) {
  std::vector<std::string> commands;
  for (const auto& match : matches(page, "`(ddprun [^`\n]+ [^`\n-][^`\n]*)`")) commands.push_back(match[1]);
  return commands;
}

std::vector<std::string> missing_lines(const std::string& expected, const std::string& printed, const Names& names) {
  std::set<std::string> found;
  std::istringstream all(printed);
  for (std::string line; std::getline(all, line);) found.insert(comparable(line, names));
  std::vector<std::string> missing;
  std::istringstream wanted(expected);
  for (std::string line; std::getline(wanted, line);) {
    if (line != "..." && found.count(comparable(line, names)) == 0) missing.push_back(line);
  }
  return missing;
}

}  // namespace ddp::test
