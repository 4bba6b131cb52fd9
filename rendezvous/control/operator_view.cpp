#include "rendezvous/control/operator_view.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/address.hpp"

namespace ddp::rendezvous {
namespace {

using Json = nlohmann::json;

std::string jobs_json(const JobViews& jobs) {
  Json list = Json::array();
  for (const auto& [run_id, job] : jobs) {
    Json nodes = Json::array();
    for (const auto& node : job.nodes) {
      Json entry{{"host_name", node.host_name}, {"address", node.address}};
      entry["group_rank"] = node.group_rank ? Json(*node.group_rank) : Json();
      nodes.push_back(std::move(entry));
    }
    list.push_back({{"run_id", run_id},
                    {"phase", job.phase},
                    {"round", job.round},
                    {"world_size", job.world_size},
                    {"nodes_min", job.nodes_min},
                    {"nodes_max", job.nodes_max},
                    {"restart_count", job.restart_count},
                    {"restarts_max", job.restarts_max},
                    {"last_reason", job.last_reason},
                    {"nodes", std::move(nodes)}});
  }
  return Json{{"jobs", std::move(list)}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A label's value: backslash, quote and line feed are escaped.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

bool are_all_of(std::string_view text, std::string_view more) {
  return std::all_of(text.begin(), text.end(), [more](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           more.find(c) != std::string_view::npos;
  });
}

// What a Host header names, without its port; empty where it is neither a name nor an address. Stricter than RFC 3986
// (3.2.2): no user, no percent signs, no punctuation but that of names.
std::optional<std::string> host_of(std::string_view header) {
  const auto bracket = header.substr(0, 1) == "[" ? header.find(']') : 0;
  if (bracket == std::string_view::npos) return {};
  const auto colon = std::min(header.find(':', bracket), header.size());
  const auto port = header.substr(std::min(colon + 1, header.size()));
  if (port.find_first_not_of("0123456789") != std::string_view::npos) return {};
  if (bracket == 0) {
    if (!are_all_of(header.substr(0, colon), "-._")) return {};
    return std::string(header.substr(0, colon));
  }
  if (bracket + 1 != colon) return {};
  const auto address = std::string(header.substr(1, bracket - 1));
  if (!base::parse_address(address)) return {};
  return address;
}

bool names_loopback(const std::string& host) {
  const auto address = base::parse_address(host);
  return host == "localhost" || (address && address->is_loopback());
}

using Counts = std::map<std::string, std::uint64_t>;

std::string metrics_text(const JobViews& jobs, const Counts& warnings) {
  struct Metric {
    const char *name, *type, *help;
    std::int64_t (*value)(const Membership::View&);
  };
  constexpr Metric kMetrics[] = {
      {"ddp_job_nodes", "gauge", "Nodes that are connected, spares included.",
       [](const Membership::View& job) { return static_cast<std::int64_t>(job.nodes.size()); }},
      {"ddp_job_world_size", "gauge", "Workers of the current or last round.",
       [](const Membership::View& job) { return static_cast<std::int64_t>(job.world_size); }},
      {"ddp_job_round", "gauge", "Number of the current or last round, -1 before the first.",
       [](const Membership::View& job) { return job.round; }},
      {"ddp_job_restarts_total", "counter", "Restarts that were taken from the job's budget.",
       [](const Membership::View& job) { return static_cast<std::int64_t>(job.restart_count); }},
  };
  std::string out =
      "# HELP ddp_jobs Jobs that are known.\n# TYPE ddp_jobs gauge\nddp_jobs " + std::to_string(jobs.size()) + "\n";
  for (const auto& metric : kMetrics) {
    out +=
        std::string("# HELP ") + metric.name + " " + metric.help + "\n# TYPE " + metric.name + " " + metric.type + "\n";
    for (const auto& [run_id, job] : jobs)
      out += std::string(metric.name) + "{job=\"" + escaped(run_id) + "\"} " + std::to_string(metric.value(job)) + "\n";
  }
  out += "# HELP ddp_warnings_total Connections that were refused or cut off.\n# TYPE ddp_warnings_total counter\n";
  for (const auto& [reason, count] : warnings)
    out += "ddp_warnings_total{reason=\"" + escaped(reason) + "\"} " + std::to_string(count) + "\n";
  return out;
}

}  // namespace

Channel::HttpAnswer answer_operator(const HttpQuestion& question, const std::function<JobViews()>& jobs,
                                    const Counts& warnings) {
  Channel::HttpAnswer answer;
  const auto path = question.target.substr(0, question.target.find('?'));
  const auto host = host_of(question.host);
  if (!host) {
    answer.status = 400;
    answer.body = "the Host header is malformed\n";
  } else if (question.method != "GET") {
    answer.status = 405;
    answer.body = "only GET is answered\n";
  } else if (path == "/healthz") {
    answer.body = "ok\n";
  } else if (path != "/v1/jobs" && path != "/metrics") {
    answer.status = 404;
    answer.body = "not found; there are /healthz, /v1/jobs and /metrics\n";
  } else if (!question.has_token && !(question.is_ours && names_loopback(*host))) {
    answer.status = question.takes_tokens ? 401 : 403;
    answer.body = "this is answered to processes of this user on this host, at 127.0.0.1";
    answer.body += question.takes_tokens ? ", and to `Authorization: Bearer <token>`\n" : " only\n";
  } else if (path == "/metrics") {
    answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer.body = metrics_text(jobs(), warnings);
  } else {
    answer.content_type = "application/json";
    answer.body = jobs_json(jobs());
  }
  return answer;
}

}  // namespace ddp::rendezvous
