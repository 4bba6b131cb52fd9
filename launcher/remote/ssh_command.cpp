#include "launcher/remote/ssh_command.hpp"

#include <cctype>
#include <optional>
#include <sstream>
#include <string_view>

#include "launcher/command_line/quoted_word.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/remote/node_service.hpp"

namespace ddp::launcher {
namespace {

// Nobody can answer a question. A host that does not answer is an error within seconds, also after the start. No
// terminal: the bytes of the connection must arrive as they are.
const std::vector<std::string> kOwnArguments{"-T",
                                             "-o",
                                             "BatchMode=yes",
                                             "-o",
                                             "ConnectTimeout=10",
                                             "-o",
                                             "ServerAliveInterval=5",
                                             "-o",
                                             "ServerAliveCountMax=3"};

}  // namespace

std::vector<std::string> words_of(const std::string& line, const std::string& where) {
  std::vector<std::string> out;
  std::optional<std::string> word;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == 0 && std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (word) out.push_back(*word);
      word.reset();
      continue;
    }
    if (!word) word.emplace();
    if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      *word += line[++i];
    } else if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else {
      *word += c;
    }
  }
  if (quote != 0)
    throw UsageError(std::string("a quote is not closed: ") + quote, where, "`--ssh-args='-p 2222 -i key'`");
  if (word) out.push_back(*word);
  return out;
}

std::vector<std::string> ssh_command(const RemoteHost& host, const std::vector<std::string>& arguments,
                                     const std::string& program) {
  std::vector<std::string> out{"ssh"};
  out.insert(out.end(), arguments.begin(), arguments.end());
  out.insert(out.end(), kOwnArguments.begin(), kOwnArguments.end());
  // The login shell may be any: it only has to know quotes. sh knows the rest.
  const std::string option = kNodeServiceOption;
  out.insert(out.end(), {"--", host.target(),
                         "exec sh -c 'test -x \"$0\" || exec ddprun " + option + "; exec \"$0\" " + option + "' " +
                             quoted_word(program)});
  return out;
}

std::vector<std::string> ssh_configuration_command(const RemoteHost& host, const std::vector<std::string>& arguments) {
  std::vector<std::string> out{"ssh"};
  out.insert(out.end(), arguments.begin(), arguments.end());
  out.insert(out.end(), {"-G", "--", host.target()});
  return out;
}

std::string address_in_configuration(const std::string& printed) {
  std::istringstream lines(printed);
  for (std::string key, value, line; std::getline(lines, line);)
    if (std::istringstream words(line); words >> key >> value && key == "hostname") return value;
  return {};
}

bool is_this_machine(const RemoteHost& host, const std::string& own_name) {
  if (!host.user.empty()) return false;
  const auto& name = host.name;
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == own_name ||
         name == own_name.substr(0, own_name.find('.'));
}

}  // namespace ddp::launcher
