#include "rendezvous/daemon/serve_jobs.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/control/reception.hpp"
#include "rendezvous/daemon/own_process.hpp"
#include "rendezvous/io/line_writer.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/round/term.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kJobsMax = 10'000;

class Jobs {
 public:
  Jobs(boost::asio::io_context& io, io::LineWriter& say, std::chrono::milliseconds heartbeat_timeout)
      : io_(io), say_(say), heartbeat_timeout_(heartbeat_timeout) {}

  // Begins the job where nobody has come for it yet. Throws Error where there are too many.
  MembershipServer& of(const Hello& hello) {
    forget_what_is_over();
    if (auto* job = job_with(hello.node_key)) return *job;
    auto found = jobs_.find(hello.run_id);
    if (found != jobs_.end() && found->second->membership().is_ending()) {
      leaving_.push_back(std::move(found->second));  // its nodes are still ending; this is the next run of that name
      jobs_.erase(found);
      found = jobs_.end();
    }
    if (found == jobs_.end()) {
      if (jobs_.size() + leaving_.size() >= kJobsMax) throw Error("there are " + std::to_string(kJobsMax) + " jobs already");
      found = jobs_.emplace(hello.run_id, begin(hello)).first;
    }
    return *found->second;
  }

  bool take_farewell(const std::string& node_key) {
    auto* job = job_with(node_key);
    return job != nullptr && job->take_farewell(node_key);
  }

  JobViews views() {
    forget_what_is_over();
    JobViews out;
    for (const auto& [run_id, job] : jobs_) out.emplace(run_id, job->membership().view());
    return out;
  }

 private:
  std::unique_ptr<MembershipServer> begin(const Hello& hello) {
    auto options = options_of(hello, begin_term());
    options.greater_part_only = false;
    options.heartbeat_timeout = heartbeat_timeout_;
    MembershipServer::Handlers handlers;
    handlers.say = [this, run_id = hello.run_id](const std::string& line) { say_("job " + run_id + ": " + line); };
    return std::make_unique<MembershipServer>(io_, std::move(options), std::move(handlers));
  }

  // Of which the node with this key is one already.
  MembershipServer* job_with(const std::string& node_key) {
    for (const auto& [run_id, job] : jobs_)
      if (job->membership().knows(node_key)) return job.get();
    for (const auto& job : leaving_)
      if (job->membership().knows(node_key)) return job.get();
    return nullptr;
  }

  void forget_what_is_over() {
    std::erase_if(jobs_, [](const auto& entry) { return entry.second->is_over(); });
    std::erase_if(leaving_, [](const auto& job) { return job->is_over(); });
  }

  boost::asio::io_context& io_;
  io::LineWriter& say_;
  std::chrono::milliseconds heartbeat_timeout_;
  std::map<std::string, std::unique_ptr<MembershipServer>> jobs_;
  std::vector<std::unique_ptr<MembershipServer>> leaving_;
};

std::shared_ptr<const security::Security> security_of(const ServeJobs& options) {
  const auto token = security::find_token(options.token_file, [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
  return token ? std::make_shared<security::Security>(*token) : nullptr;
}

}  // namespace

int serve_jobs(const ServeJobs& options) {
  boost::asio::io_context io(1);
  OwnProcess process(io);
  io::LineWriter say(STDERR_FILENO, "ddp-rendezvous: ");
  Jobs jobs(io, say, options.heartbeat_timeout);
  Reception::Options rules;
  rules.heartbeat_timeout = options.heartbeat_timeout;
  rules.security = security_of(options);
  const bool is_open = !rules.security;
  rules.http = [&jobs](const HttpQuestion& question) { return answer_operator(question, jobs.views()); };
  rules.farewell = [&jobs](const std::string& node_key) { return jobs.take_farewell(node_key); };
  Reception reception(io, std::move(rules),
                      [&jobs](const Hello& hello) -> Reception::Direction { return std::ref(jobs.of(hello)); }, std::ref(say));
  port::Port port(io, {.addresses = options.hosts, .first = options.port, .last = options.port, .warn = std::ref(say)},
                  {.http = [&reception](io::UniqueFd socket, const sockaddr_storage& peer) {
                    reception.adopt(std::move(socket), peer);
                  },
                   .tls = [&reception](io::UniqueFd socket, const sockaddr_storage& peer) {
                    reception.adopt_tls(std::move(socket), peer);
                  }});
  if (is_open) say("there is no token: whoever reaches the port can join and begin jobs (--token-file)");
  std::cout << "ddp-rendezvous: membership listens on " << listening_text(options.hosts, port.number()) << std::endl;
  return process.run_until_signal();
}

}  // namespace ddp::rendezvous
