#include "base/man_page.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace ddp::base {

std::string for_troff(std::string_view text) {
  std::string out;
  bool is_line_start = true;
  for (const char c : text) {
    if (is_line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '-') out += '\\';
    out += c == '\\' ? "\\e" : std::string(1, c);
    is_line_start = c == '\n';
  }
  return out;
}

std::string man_page(const std::string& program, const std::string& purpose, const std::string& version,
                     const std::string& help) {
  std::string title = program;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::ostringstream out;
  out << ".TH " << for_troff(title) << " 1 \"\" \"ddprun " << for_troff(version) << "\"\n.SH NAME\n"
      << for_troff(program) << " \\- " << for_troff(purpose) << "\n.SH DESCRIPTION\n";
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos) {
      out << ".PP\n";
    } else if (indent == 0 && line.back() == ':') {
      out << ".SS " << for_troff(line) << '\n';  // "Options:"
    } else if (indent == 2) {
      // "  --port PORT=29400   Port to listen on": two spaces end the option. Its help may be in the next line instead.
      const std::size_t end = std::min(line.find("  ", indent), line.size());
      const std::size_t text = std::min(line.find_first_not_of(' ', end), line.size());
      out << ".TP\n\\fB" << for_troff(line.substr(indent, end - indent)) << "\\fR\n";
      if (text < line.size()) out << for_troff(line.substr(text)) << '\n';
    } else {
      if (line.rfind("Usage:", 0) == 0) out << ".PP\n";
      out << for_troff(line.substr(indent)) << '\n';
    }
  }
  out << ".SH SEE ALSO\n.BR ddprun (1)\n";
  return out.str();
}

}  // namespace ddp::base
