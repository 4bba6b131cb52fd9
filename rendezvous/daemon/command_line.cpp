#include "rendezvous/daemon/command_line.hpp"

#include <CLI/CLI.hpp>

#include "base/address.hpp"
#include "base/man_page.hpp"
#include "rendezvous/store/access_control.hpp"

namespace ddp::rendezvous {
namespace {

void declare_place(CLI::App& app, std::uint16_t& port, std::vector<std::string>& hosts) {
  app.add_option("--port", port, "Port to listen on. 0 means a free port, which is printed")
      ->type_name("PORT")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--host", hosts, "Addresses of this host to listen on. Default: all addresses")
      ->type_name("ADDRESS,..")
      ->delimiter(',');
}

void declare_log_level(CLI::App& app, base::LogLevel& level) {
  app.add_option_function<std::string>(
         "--log-level", [&level](const std::string& word) { level = *base::log_level_of(word); },
         "Lowest level of the events on stderr: debug, info, warning, error or off. Default: info")
      ->type_name("LEVEL")
      ->envname("DDPRUN_LOG_LEVEL")
      ->check([](const std::string& word) {
        if (base::log_level_of(word)) return std::string();
        return "one of " + std::string(base::kLogLevelWords) + " is wanted, not '" + word + "'";
      });
}

void check_place(const std::vector<std::string>& hosts) {
  for (const auto& host : hosts)
    if (!base::parse_address(host)) throw CommandLineError("--host: \"" + host + "\" is no IPv4 or IPv6 address");
}

void check(const ServeStore& options) {
  check_place(options.hosts);
  try {
    (void)store::AllowList::parse(options.allow);
  } catch (const InvalidArgument& error) {
    throw CommandLineError(std::string("--store-allow: ") + error.what());
  }
}

}  // namespace

std::string listening_text(const std::vector<std::string>& hosts, std::uint16_t port) {
  std::string text = "port " + std::to_string(port) + " of ";
  if (hosts.empty()) return text + "all addresses";
  for (std::size_t i = 0; i < hosts.size(); ++i) text += (i == 0 ? "" : ", ") + hosts[i];
  return text;
}

std::variant<ShowText, ServeStore, ServeJobs> parse_command_line(const std::vector<std::string>& arguments,
                                                                 const std::string& version) {
  CLI::App app(
      "Serves the endpoint where the nodes of jobs meet. Start ddprun with `--rdzv-backend=c10d "
      "--rdzv-endpoint=HOST:PORT`",
      "ddp-rendezvous");
  bool show_version = false, show_man_page = false;
  app.add_flag("--print-man-page", show_man_page, "For the build")->group("");  // an empty group: not in the help
  app.add_flag("--version", show_version, "Print the version and exit");
  ServeJobs jobs;
  declare_place(app, jobs.port, jobs.hosts);
  double heartbeat_seconds = 3;
  app.add_option("--heartbeat-timeout", heartbeat_seconds, "Silence in seconds after which a node counts as dead")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  app.add_option("--token-file", jobs.token_file,
                 "File with the secret of the nodes and this daemon, of mode 0600. Default: DDPRUN_TOKEN, else "
                 "~/.config/ddprun/token. Without a token, everybody who reaches the port can join")
      ->type_name("PATH");
  app.add_option("--scrape-token-file", jobs.scrape_token_file,
                 "File with another secret, of mode 0600. A client of any host that sends `Authorization: Bearer "
                 "<token>` can read /v1/jobs and /metrics, and nothing else")
      ->type_name("PATH");
  declare_log_level(app, jobs.log.level);
  app.add_option("--log-dir", jobs.log.directory,
                 "Folder of ddp-rendezvous.log. When a job ends with an error, this file gets the newest lines of all "
                 "levels")
      ->type_name("DIR");
  ServeStore options;
  auto* store = app.add_subcommand("store",
                                   "Serve only a store, for workers that ddprun does not start. Workers find it by "
                                   "MASTER_ADDR and MASTER_PORT. Set TORCHELASTIC_USE_AGENT_STORE=True so that "
                                   "PyTorch does not start its own store");
  declare_place(*store, options.port, options.hosts);
  store
      ->add_option("--store-allow", options.allow,
                   "Who may connect, besides this user's processes on this host: blocks such as 10.0.0.0/8, or any")
      ->type_name("CIDR,..|any")
      ->delimiter(',');
  store->add_option("--store-memory", options.memory_mib, "Memory of the store and all connections to it, in MiB")
      ->type_name("MIB")
      ->check(CLI::Range(store::kMemoryMibMin, store::kMemoryMibMax))
      ->capture_default_str();
  declare_log_level(*store, options.log.level);
  app.require_subcommand(0, 1);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // it takes the last word first
  } catch (const CLI::CallForHelp&) {
    return ShowText{store->parsed() ? store->help("ddp-rendezvous") : app.help()};
  } catch (const CLI::ParseError& error) {
    throw CommandLineError(error.what());
  }
  if (show_man_page)
    return ShowText{base::man_page("ddp-rendezvous", "serves the endpoint where the nodes of jobs meet", version,
                                   app.help() + "\n" + store->help("ddp-rendezvous"))};
  if (show_version) return ShowText{"ddp-rendezvous " + version + "\n"};
  if (jobs.log.directory && (jobs.log.directory->empty() || store->parsed()))
    throw CommandLineError(store->parsed() ? "--log-dir: a store alone has no jobs that end"
                                           : "--log-dir: a folder is wanted");
  if (store->parsed()) {
    check(options);
    return options;
  }
  check_place(jobs.hosts);
  jobs.heartbeat_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(heartbeat_seconds * 1000));
  return jobs;
}

}  // namespace ddp::rendezvous
