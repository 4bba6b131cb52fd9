#include "worker_runtime/core/bootstrap/local_acceptor.hpp"

#include <exception>
#include <optional>
#include <utility>

#include "base/random_key.hpp"

namespace ddp::core {

LocalAcceptor::LocalAcceptor(int backlog)
    : name_("ddp-" + base::random_key()), listener_(listen_locally(name_, backlog)) {}

void LocalAcceptor::add_to(std::vector<pollfd>& polled) const {
  polled.push_back({listener_.get(), POLLIN, 0});
  for (const auto& connection : unidentified_) polled.push_back({connection.get(), POLLIN, 0});
}

void LocalAcceptor::take(std::span<const pollfd> polled, const Accept& accept) {
  for (std::size_t i = 0; i < unidentified_.size(); ++i) {
    if (is_readable(polled[1 + i])) identify(unidentified_[i], accept);
  }
  std::erase_if(unidentified_, [](const base::UniqueFd& connection) { return !connection; });
  if (!is_readable(polled[0])) return;
  while (auto socket = accept_locally(listener_.get())) unidentified_.push_back(std::move(socket));
}

// Leaves `socket` as it is while nothing has come.
void LocalAcceptor::identify(base::UniqueFd& socket, const Accept& accept) {
  std::optional<Message> hello;
  try {
    hello = receive_message(socket.get());
    if (!hello) return;
  } catch (const NoDescriptorLeft&) {
    throw;
  } catch (const std::exception&) {  // closed, or a protocol error: it is no rank of this group
  }
  if (hello && hello->kind == Message::Kind::hello && hello->fd) accept(*hello, socket);
  socket.reset();
}

}  // namespace ddp::core
