#include "rendezvous/daemon/command_line.hpp"

#include <CLI/CLI.hpp>

#include "rendezvous/io/address.hpp"
#include "rendezvous/store/door.hpp"

namespace ddp::rendezvous {
namespace {

void declare_store(CLI::App& store, ServeStore& options) {
  store.add_option("--port", options.port, "Port to listen on; 0 takes a free one and prints it")
      ->type_name("PORT")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  store.add_option("--host", options.hosts, "Address of this host to listen on, or several; default: all")
      ->type_name("ADDRESS,..")
      ->delimiter(',');
  store
      .add_option("--store-allow", options.allow,
                  "Who may connect besides this user's processes on this host: blocks such as 10.0.0.0/8, or any")
      ->type_name("CIDR,..|any")
      ->delimiter(',');
}

void check(const ServeStore& options) {
  for (const auto& host : options.hosts) {
    if (!io::parse_address(host)) throw UsageError("--host: \"" + host + "\" is no IPv4 or IPv6 address");
  }
  try {
    (void)store::AllowList::parse(options.allow);
  } catch (const InvalidArgument& error) {
    throw UsageError(std::string("--store-allow: ") + error.what());
  }
}

}  // namespace

std::variant<ShowText, ServeStore> parse_command_line(const std::vector<std::string>& arguments,
                                                      const std::string& version) {
  CLI::App app("Where the processes of a job find each other", "ddp-rendezvous");
  bool show_version = false;
  app.add_flag("--version", show_version, "Print the version and exit");
  ServeStore options;
  auto* store = app.add_subcommand("store",
                                   "Serve a store alone, for workers that something else than ddprun starts: "
                                   "MASTER_ADDR and MASTER_PORT name it, TORCHELASTIC_USE_AGENT_STORE=True tells "
                                   "PyTorch not to start one");
  declare_store(*store, options);
  app.require_subcommand(0, 1);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // it takes the last word first
  } catch (const CLI::CallForHelp&) {
    return ShowText{store->parsed() ? store->help("ddp-rendezvous") : app.help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (show_version) return ShowText{"ddp-rendezvous " + version + "\n"};
  if (!store->parsed()) throw UsageError("nothing to do: `store` is missing");
  check(options);
  return options;
}

}  // namespace ddp::rendezvous
