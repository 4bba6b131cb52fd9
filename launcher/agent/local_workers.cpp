#include "launcher/agent/local_workers.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstddef>

#include "launcher/agent/assignment.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "launcher/output/log_tree.hpp"

namespace ddp::launcher {
namespace {

std::string text_of(const std::exception& error) {
  const auto* usage = dynamic_cast<const UsageError*>(&error);
  return error.what() + (usage == nullptr ? "" : " (" + usage->where() + ")");
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& what) {
    return text_of(what);
  }
}

}  // namespace

LocalWorkers::LocalWorkers(boost::asio::io_context& io, const Parts& parts, Handlers handlers)
    : io_(io), parts_(parts), handlers_(std::move(handlers)), has_terminal_(::isatty(STDIN_FILENO) != 0) {}

void LocalWorkers::perform(const NodeCore::OpenOutput& action) {
  show_bindings();
  open_output(others_than(action.local_ranks), [this](std::exception_ptr error) {
    spawn_error_ = error;
    handlers_.event(NodeCore::OutputOpened{error ? std::optional(text_of(error)) : std::nullopt});
  });
}

void LocalWorkers::perform(const NodeCore::Spawn& action) {
  auto left = action.local_ranks;
  try {
    for (; !left.empty(); left.erase(left.begin())) spawn(left.front());
  } catch (const std::exception& error) {
    spawn_error_ = std::current_exception();
    boost::asio::post(io_, [this, why = text_of(error), left] { handlers_.event(NodeCore::SpawnFailed{why, left}); });
  }
}

void LocalWorkers::spawn(int local_rank) {
  const auto socket = parts_.links.open(local_rank);
  const auto side = parts_.output.worker_side(local_rank);
  parts_.guardian.spawn(local_rank, variables_of(local_rank), {side[0], side[1], side[2], socket.get()});
  parts_.output.worker_is_spawned(local_rank);
}

void LocalWorkers::perform(const NodeCore::Seat& action) {
  try {
    if (action.are_all) {
      show_bindings();
      open_output(action.local_ranks, [](std::exception_ptr) {});  // there is nothing to open
    }
  } catch (const std::exception& error) {
    return boost::asio::post(io_, [this, why = text_of(error), local_ranks = action.local_ranks] {
      handlers_.event(NodeCore::SeatsFailed{why, local_ranks});
    });
  }
  for (const int local_rank : action.local_ranks) {
    worker_link::LinkSeat seat;
    for (const auto& variable : variables_of(local_rank))
      seat.variables[name_of(variable)] = variable.substr(variable.find('=') + 1);
    parts_.links.send(local_rank, seat);
  }
}

void LocalWorkers::perform(const NodeCore::SendToWorker& action) {
  std::visit([&](const auto& message) { parts_.links.send(action.local_rank, message); }, action.message);
}

void LocalWorkers::perform(const NodeCore::SendToWorkers& action) {
  std::visit([&](const auto& message) { parts_.links.send_to_all(message); }, action.message);
}

void LocalWorkers::open_output(const std::vector<int>& kept, Output::Opened opened) {
  const auto& round = parts_.core.round();
  // Who reads the terminal in the background is stopped.
  const bool may_read = !has_terminal_ || ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
  parts_.output.begin_round({job_folder(parts_.run_id, round.job_started), round.round.number, round.rank_first,
                             parts_.config.workers, round.world_size, parts_.config.role, may_read},
                            kept, std::move(opened));
}

std::vector<std::string> LocalWorkers::variables_of(int local_rank) const {
  const auto& bindings = parts_.bindings;
  const auto core_share = bindings.empty() ? std::nullopt : bindings[static_cast<std::size_t>(local_rank)].core_share;
  return worker_variables(
      assignment_of(parts_.core.round(), parts_.config, parts_.run_id, parts_.core.store_address()),
      {local_rank, parts_.output.error_file(local_rank), core_share, parts_.output.round_directory()},
      parts_.inherited);
}

std::vector<int> LocalWorkers::others_than(const std::vector<int>& local_ranks) const {
  std::vector<int> out;
  for (int local_rank = 0; local_rank < parts_.config.workers; ++local_rank)
    if (std::find(local_ranks.begin(), local_ranks.end(), local_rank) == local_ranks.end()) out.push_back(local_rank);
  return out;
}

// Once, and again if the workers' ranks are new.
void LocalWorkers::show_bindings() {
  const int rank_first = parts_.core.round().rank_first;
  if (!parts_.config.binding.display || std::exchange(shown_rank_first_, rank_first) == rank_first) return;
  for (std::size_t i = 0; i < parts_.bindings.size(); ++i)
    handlers_.print("rank " + std::to_string(rank_first + static_cast<int>(i)) + ": " + describe(parts_.bindings[i]));
}

}  // namespace ddp::launcher
