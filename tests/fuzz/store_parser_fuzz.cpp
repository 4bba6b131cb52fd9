// Feeds the store's parser and key-value core with anything, and checks what must hold for everything.
//
// The input is a run of segments: one byte that names one of four connections (in its low two bits; the highest bit: it
// hangs up), one byte with a length, and that many bytes that the connection receives. Connection 3 begins with
// nothing, the others with a VALIDATE behind them. Limits are small, so that short inputs reach them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include "ddp/error.hpp"
#include "rendezvous/store/codec.hpp"
#include "rendezvous/store/key_value_store.hpp"
#include "rendezvous/store/send_queue.hpp"
#include "tests/fuzz/targets.hpp"

namespace {

using namespace ddp::store;
using ddp::fuzz::require;

constexpr ParserLimits kLimits{
    .key_bytes_max = 24, .value_bytes_max = 48, .list_count_max = 6, .command_bytes_max = 200};
constexpr KeyValueStoreOptions kOptions{.value_bytes_max = 60,
                                        .copied_bytes_max = 8,
                                        .answer_bytes_max = 300,
                                        .total_bytes_max = 5000,
                                        .wait_bytes_max = 1000};
constexpr unsigned kConnections = 4;
constexpr unsigned kUnvalidated = 3;

class StoreWorld {
 public:
  StoreWorld() {
    for (unsigned i = 0; i < kConnections; ++i) begin(i);
  }

  void receive(unsigned connection, std::string_view bytes) {
    try {
      while (auto command = parsers_[connection]->next(bytes)) apply(connection, std::move(*command));
    } catch (const ddp::StoreError&) {
      hang_up(connection);
    }
  }

  void hang_up(unsigned connection) {
    outputs_[connection].clear();
    store_.disconnected(ConnectionId{connection});
    begin(connection);
  }

  // Nothing may be left when all have gone and all they stored is taken away.
  void end() {
    for (unsigned i = 0; i < kConnections; ++i) hang_up(i);
    require(store_.waiting_count() == 0, "nobody waits when all have gone");
    for (const auto& name : names_) {
      (void)store_.step(ConnectionId{0}, command::Remove{name});
      while (decode_u64(store_.step(ConnectionId{0}, command::QueuePop{name}).front().bytes) > 0) {
      }
    }
    require(store_.key_count() == 0 && store_.total_bytes() == 0, "an emptied store counts no bytes");
  }

 private:
  void begin(unsigned connection) {
    parsers_[connection].emplace(kLimits);
    if (connection == kUnvalidated) return;
    const std::string hello = encode(command::Validate{});
    std::string_view bytes = hello;
    require(!parsers_[connection]->next(bytes) && bytes.empty(), "VALIDATE is taken in");
  }

  void apply(unsigned connection, Command command) {
    const std::string bytes = encode(command);
    require(bytes.size() <= kLimits.command_bytes_max, "a command keeps to its limit");
    require_same_again(command, bytes);
    remember_names(command);
    const bool is_silent =
        std::holds_alternative<command::Set>(command) || std::holds_alternative<command::Append>(command) ||
        std::holds_alternative<command::MultiSet>(command) || std::holds_alternative<command::QueuePush>(command);
    const bool may_wait =
        std::holds_alternative<command::Wait>(command) || std::holds_alternative<command::Barrier>(command);
    const std::size_t waiting = store_.waiting_count();
    const std::size_t total_bytes = store_.total_bytes();
    std::size_t own = 0;
    try {
      for (auto& answer : store_.step(ConnectionId{connection}, std::move(command))) {
        const auto to = static_cast<std::uint64_t>(answer.to);
        require(to < kConnections, "answers go to connections there are");
        if (to == connection) ++own;
        const std::size_t before = outputs_[to].bytes();
        outputs_[to].append(std::move(answer));
        require(outputs_[to].bytes() - before <= kOptions.answer_bytes_max + 8, "an answer keeps to its limit");
      }
    } catch (const ddp::StoreError&) {
      require(store_.waiting_count() == waiting && store_.total_bytes() == total_bytes,
              "a refused command changes nothing");
      throw;
    }
    // A client that waits may go on talking, and then its wait's answer comes with that of a later command.
    read_some(outputs_[connection], bytes.size());
    require(may_wait || is_silent || own >= 1, "a command that has an answer gets it");
    require(own <= 2, "no more answers than questions");
    require(store_.total_bytes() <= kOptions.total_bytes_max, "the store keeps to its limit");
  }

  // A client reads as much as it has sent, so some answers stay while the values change.
  static void read_some(SendQueue& output, std::size_t bytes_max) {
    static SendQueue::Scratch scratch;
    std::size_t bytes = 0;
    for (const auto part : output.front(scratch)) bytes += part.size();
    require(output.is_empty() == (bytes == 0), "what is not written is there to be written");
    output.consume(std::min(bytes, bytes_max));
    require(!output.is_empty() || output.memory_bytes() < 2048, "an output gives back its memory");
  }

  static void require_same_again(const Command& command, std::string_view bytes) {
    CommandParser parser(kLimits);
    const std::string hello = encode(command::Validate{});
    std::string_view first = hello;
    (void)parser.next(first);
    const auto again = parser.next(bytes);
    require(again && *again == command && bytes.empty(), "a command survives encoding and parsing");
  }

  void remember_names(const Command& command) {
    std::visit(
        [this](const auto& c) {
          if constexpr (requires { c.key; }) names_.insert(c.key);
          if constexpr (requires { c.entries; })
            for (const auto& entry : c.entries) names_.insert(entry.key);
        },
        command);
  }

  KeyValueStore store_{kOptions};
  SendQueue outputs_[kConnections];  // what they refer to is the store's
  std::optional<CommandParser> parsers_[kConnections];
  std::set<std::string> names_;  // of all that may have been stored
};

}  // namespace

void ddp::fuzz::store_parser(std::string_view input) {
  StoreWorld world;
  while (input.size() >= 2) {
    const auto who = take_byte(input);
    world.receive(who % kConnections, take_text(input));
    if ((who & 0x80) != 0) world.hang_up(who % kConnections);
  }
  world.end();
}
