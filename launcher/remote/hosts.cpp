#include "launcher/remote/hosts.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "ddp/error.hpp"
#include "launcher/command_line/option_values.hpp"
#include "rendezvous/slurm/host_list.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kHostExample = "`--hosts=node0,node1:8,user@[fe80::1]:4`: names or addresses, parted by commas";
constexpr const char* kLineExample = "`node0 slots=8` in each line";

bool consists_of(std::string_view text, std::string_view others) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [others](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  });
}

// Reads one entry. Where it stands and what to try come from whoever reads the list.
class EntryReader {
 public:
  EntryReader(std::string where, std::string try_this, bool may_have_count)
      : where_(std::move(where)), try_(std::move(try_this)), may_have_count_(may_have_count) {}

  // An entry with a range is several hosts.
  std::vector<RemoteHost> read(const std::string& entry) const {
    RemoteHost host;
    const auto at = entry.find('@');
    if (at != std::string::npos) host.user = entry.substr(0, at);
    const auto rest = at == std::string::npos ? entry : entry.substr(at + 1);
    if (rest.find('@') != std::string::npos) fail("'" + entry + "' has two @");
    if (at != std::string::npos && (!consists_of(host.user, "._-+") || host.user[0] == '-'))
      fail("'" + host.user + "' is no name of a user");
    const auto end = end_of_name(rest);
    host.workers = count_of(rest.substr(end), entry);
    return hosts_of(host, rest.substr(0, end));
  }

  [[noreturn]] void fail(const std::string& what) const { throw UsageError(what, where_, try_); }

 private:
  static bool is_bracketed_address(const std::string& text) {
    return text[0] == '[' && text.find(':') < text.find(']');
  }

  std::size_t end_of_name(const std::string& text) const {
    if (!text.empty() && is_bracketed_address(text)) {
      const auto end = text.find(']');
      if (end == std::string::npos) fail("'" + text + "' has no ]");
      return end + 1;
    }
    const auto colon = text.find(':');
    if (colon != std::string::npos && text.find(':', colon + 1) != std::string::npos)
      fail("'" + text + "' has more than one colon; an IPv6 address stands in brackets: [" + text + "]");
    return std::min(colon, text.size());
  }

  std::optional<int> count_of(const std::string& text, const std::string& entry) const {
    if (text.empty()) return {};
    if (!may_have_count_) fail("'" + entry + "' has a number of workers behind the name; here it is `slots=N`");
    const auto count = text[0] == ':' ? whole_number(text.substr(1), 1, kWorkersMax) : std::nullopt;
    if (!count) fail("a number of workers from 1 to " + std::to_string(kWorkersMax) + " is wanted, not '" + text + "'");
    return count;
  }

  std::vector<RemoteHost> hosts_of(const RemoteHost& host, const std::string& name) const {
    if (name.empty()) fail("the name of a host is empty");
    std::vector<std::string> names;
    if (is_bracketed_address(name)) {
      names.push_back(name.substr(1, name.size() - 2));
      if (!consists_of(names[0], ":.%_-")) fail("'" + name + "' is no IPv6 address");
    } else {
      if (!consists_of(name, "._-[],")) fail("'" + name + "' is no name of a host");
      try {
        names = slurm::expand_host_list(name);
      } catch (const InvalidArgument& error) {
        fail(error.what());
      }
      for (const auto& each : names)
        if (each.empty() || each[0] == '-') fail("'" + name + "' is no name of a host");
    }
    std::vector<RemoteHost> out;
    for (auto& each : names) out.push_back({host.user, std::move(each), host.workers});
    return out;
  }

  const std::string where_, try_;
  const bool may_have_count_;
};

void add(std::vector<RemoteHost>& hosts, const RemoteHost& host, const EntryReader& reader) {
  const auto same = std::find_if(hosts.begin(), hosts.end(),
                                 [&host](const RemoteHost& other) { return other.target() == host.target(); });
  if (same == hosts.end()) {
    if (hosts.size() == kHostsMax)
      reader.fail("there are more than " + std::to_string(kHostsMax) +
                  " hosts, which is the most that one ddprun starts");
    hosts.push_back(host);
    return;
  }
  if (!same->workers || !host.workers)
    reader.fail("host " + host.target() + " is named twice, and not each time with a number of workers");
  if (*same->workers + *host.workers > kWorkersMax)
    reader.fail("host " + host.target() + " has more than " + std::to_string(kWorkersMax) + " workers");
  *same->workers += *host.workers;
}

// Parted by commas that do not stand in brackets.
std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (const char c : list) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth <= 0)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

// "slots = 4" is "slots=4".
std::string without_spaces_around_equals(const std::string& line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool is_space = line[i] == ' ' || line[i] == '\t' || line[i] == '\r';
    if (is_space) {
      const auto next = line.find_first_not_of(" \t\r", i);
      if (next == std::string::npos || line[next] == '=' || (!out.empty() && out.back() == '=')) continue;
    }
    out += is_space ? ' ' : line[i];
  }
  return out;
}

}  // namespace

std::vector<RemoteHost> hosts_of_list(const std::string& list, const std::string& where) {
  const EntryReader reader(where, kHostExample, true);
  std::vector<RemoteHost> out;
  for (const auto& entry : entries_of(list))
    for (const auto& host : reader.read(entry)) add(out, host, reader);
  return out;
}

std::vector<RemoteHost> hosts_of_file(const std::string& text, const std::string& path,
                                      std::vector<std::string>& notices) {
  std::vector<RemoteHost> out;
  std::istringstream lines(text);
  int number = 0;
  bool told = false;
  for (std::string line; std::getline(lines, line);) {
    const auto where = path + ", line " + std::to_string(++number);
    const EntryReader reader(where, kLineExample, false);
    std::istringstream words(without_spaces_around_equals(line.substr(0, line.find('#'))));
    std::string name;
    if (!(words >> name)) continue;
    auto hosts = reader.read(name);
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      const auto key = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
      if (key == "max_slots" || key == "max-slots") {
        if (!std::exchange(told, true)) notices.push_back("without effect: " + key + " in " + path);
        continue;
      }
      const auto count = whole_number(value, 1, kWorkersMax);
      if (key != "slots") reader.fail("'" + word + "' is no setting of a host");
      if (!count)
        reader.fail("slots takes a number from 1 to " + std::to_string(kWorkersMax) + ", not '" + value + "'");
      for (auto& host : hosts) host.workers = count;
    }
    for (const auto& host : hosts) add(out, host, reader);
  }
  if (out.empty()) throw UsageError("the host file names no host", path, kLineExample);
  return out;
}

}  // namespace ddp::launcher
