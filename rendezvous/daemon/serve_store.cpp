#include "rendezvous/daemon/serve_store.hpp"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <functional>

#include "base/line_writer.hpp"
#include "rendezvous/daemon/daemon_log.hpp"
#include "rendezvous/daemon/own_process.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/store/server.hpp"

namespace ddp::rendezvous {

int serve_store(const ServeStore& options) {
  boost::asio::io_context io(1);
  OwnProcess process(io);
  DaemonLog log(io, options.log);
  base::LineWriter out(STDOUT_FILENO, "ddp-rendezvous");
  auto& warnings = log.warnings();
  store::Server server(io, {.allow = options.allow,
                            .total_bytes_max = static_cast<std::size_t>(options.memory_mib) << 20,
                            .memory_option = "--store-memory",
                            .warn = std::ref(warnings)});
  port::Port port(io,
                  {.addresses = options.hosts, .first = options.port, .last = options.port, .warn = std::ref(warnings)},
                  {.store = [&server](base::UniqueFd socket, const sockaddr_storage& peer) {
                    server.adopt(std::move(socket), peer);
                  }});
  out("ddp-rendezvous: the store listens on " + listening_text(options.hosts, port.number()));
  return process.run_until_signal();
}

}  // namespace ddp::rendezvous
