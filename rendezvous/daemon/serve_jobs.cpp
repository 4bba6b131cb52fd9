#include "rendezvous/daemon/serve_jobs.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/address.hpp"
#include "base/descriptor_room.hpp"
#include "base/line_writer.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/control/reception.hpp"
#include "rendezvous/daemon/daemon_log.hpp"
#include "rendezvous/daemon/job_table.hpp"
#include "rendezvous/daemon/own_process.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/round/term.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::rendezvous {
namespace {

JobTable<MembershipServer>::Handlers handlers_of(boost::asio::io_context& io, DaemonLog& log,
                                                 std::chrono::milliseconds heartbeat_timeout) {
  return {[&io, &log, heartbeat_timeout](const Hello& hello, const JobBefore& before) {
    auto options = daemon_options(hello, begin_term(), heartbeat_timeout, before);
    MembershipServer::Handlers handlers;
    handlers.log = [&log, run_id = hello.run_id](const base::LogEvent& event, const base::LogFields& where) {
      log(event, base::LogFields().add("job", run_id).add(where));
      if (event.level == base::LogLevel::error) log.write_kept();
    };
    return std::make_unique<MembershipServer>(io, std::move(options), std::move(handlers));
  }};
}

Reception::Direction direct(JobTable<MembershipServer>& jobs, const Hello& hello, const base::Address& source) {
  const auto direction = jobs.direct(hello, source, std::chrono::steady_clock::now());
  return std::visit([](const auto& where) { return Reception::Direction(where); }, direction);
}

std::optional<security::Tokens> tokens_of(const ServeJobs& options, const std::optional<std::string>& token_variable) {
  return security::find_tokens(options.token_file, [&token_variable](const std::string& name) {
    if (name == security::kTokenVariable) return token_variable;
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace

int serve_jobs(const ServeJobs& options, const std::optional<std::string>& token_variable) {
  // Other threads only post to the loop, so its sockets need no locks.
  boost::asio::io_context io(BOOST_ASIO_CONCURRENCY_HINT_UNSAFE_IO);
  OwnProcess process(io);
  DaemonLog log(io, options.log);
  base::LineWriter out(STDOUT_FILENO, "ddp-rendezvous");
  auto& warnings = log.warnings();
  JobTable<MembershipServer> jobs(handlers_of(io, log, options.heartbeat_timeout),
                                  std::min(kJobsMax, base::descriptor_room().met));
  Reception::Options rules;
  rules.heartbeat_timeout = options.heartbeat_timeout;
  const auto tokens = tokens_of(options, token_variable);
  if (tokens || options.scrape_token_file) security::hide_memory();
  if (tokens) rules.security = std::make_shared<security::Security>(*tokens);
  rules.scrape_tokens = security::find_scrape_tokens(options.scrape_token_file, tokens);
  const bool is_open = !rules.security;
  rules.http = [&jobs, &warnings](const HttpQuestion& question) {
    return answer_operator(
        question, [&jobs] { return jobs.views(std::chrono::steady_clock::now()); }, warnings.counts());
  };
  rules.farewell = [&jobs](const NodeEnded& node) { return jobs.take_farewell(node); };
  Reception reception(
      io, std::move(rules),
      [&jobs](const Hello& hello, const base::Address& source) { return direct(jobs, hello, source); },
      std::ref(warnings));
  port::Port port(
      io, {.addresses = options.hosts, .first = options.port, .last = options.port, .warn = std::ref(warnings)},
      {.http = [&reception](base::UniqueFd socket,
                            const sockaddr_storage& peer) { reception.adopt(std::move(socket), peer); },
       .tls = [&reception](base::UniqueFd socket,
                           const sockaddr_storage& peer) { reception.adopt_tls(std::move(socket), peer); }});
  if (is_open)
    log({"no_token",
         base::LogFields().add("text",
                               "there is no token: whoever reaches the port can join and begin jobs (--token-file)"),
         base::LogLevel::warning});
  out("ddp-rendezvous: membership listens on " + listening_text(options.hosts, port.number()));
  const int number = process.run_until_signal();
  log({"stopped", base::LogFields().add("signal", signal_name(number)), base::LogLevel::info});
  return number;
}

}  // namespace ddp::rendezvous
