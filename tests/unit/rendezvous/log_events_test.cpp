#include "rendezvous/control/log_events.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/wire/message_json.hpp"

namespace ddp::rendezvous {
namespace {

using base::LogLevel;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kSecretKey(32, 'e'), kSecretNonce(32, 'd');

// One message of each type.
template <typename Message, std::size_t... index>
std::vector<Message> one_of_each(std::index_sequence<index...>) {
  return {Message(std::variant_alternative_t<index, Message>())...};
}
template <typename Message>
std::vector<Message> one_of_each() {
  return one_of_each<Message>(std::make_index_sequence<std::variant_size_v<Message>>());
}

template <typename Message>
void expect_names_of_the_wire() {
  for (auto message : one_of_each<Message>()) {
    if constexpr (std::is_same_v<Message, ToMembership>)
      if (auto* hello = std::get_if<Hello>(&message)) hello->node_key = kSecretKey;
    const std::string name(log_event_of(message).name);
    EXPECT_THAT(to_json(message), HasSubstr("\"type\":\"" + name + "\""));
  }
}

TEST(MessageEvents, AreNamedAsOnTheWire) {
  expect_names_of_the_wire<ToMembership>();
  expect_names_of_the_wire<ToAgent>();
}

TEST(MessageEvents, TellNoSecret) {
  Hello hello;
  hello.node_key = kSecretKey;
  hello.held = Held{};
  hello.held->nonces = {kSecretNonce};
  StartRound start;
  start.nonce = kSecretNonce;
  const auto came = log_event_of(HostCore::Event(HostCore::Came{NodeId{1}, hello, "10.0.0.1"}));
  const auto farewell = log_event_of(HostCore::Event(HostCore::GuardianSaid{kSecretKey}));
  for (const auto& text : {log_event_of(ToMembership(hello)).fields.text(), came.fields.text(),
                           log_event_of(ToAgent(start)).fields.text(), farewell.fields.text()}) {
    EXPECT_THAT(text, Not(HasSubstr(kSecretKey)));
    EXPECT_THAT(text, Not(HasSubstr(kSecretNonce)));
  }
}

TEST(MessageEvents, OfABadEndAreErrors) {
  FinishJob good, stopped, stopped_at_step, failed, refused;
  stopped.exit_code = 128 + 15;
  stopped_at_step.exit_code = kStoppedAtStep;
  failed.exit_code = 128 + 9;
  failed.cause = FailureReport{};
  refused.exit_code = kRendezvousFailed;
  EXPECT_EQ(log_event_of(ToAgent(good)).level, LogLevel::info);
  EXPECT_EQ(log_event_of(ToAgent(stopped)).level, LogLevel::info);
  EXPECT_EQ(log_event_of(ToAgent(stopped_at_step)).level, LogLevel::info);
  EXPECT_EQ(log_event_of(ToAgent(failed)).level, LogLevel::error);
  EXPECT_EQ(log_event_of(ToAgent(refused)).level, LogLevel::error);
}

TEST(HostEvents, HaveTheLevelThatIsKnownBeforeTheirText) {
  for (const HostCore::Event& event :
       {HostCore::Event(HostCore::Came{NodeId{1}, {}, "10.0.0.1"}), HostCore::Event(Heard{NodeId{1}, Hello()}),
        HostCore::Event(Heard{NodeId{1}, RoundFailed()}), HostCore::Event(HostCore::Ended{NodeId{1}, "reset"}),
        HostCore::Event(HostCore::OwnAgentFinished())})
    EXPECT_EQ(log_event_of(event).level, log_level_of(event)) << log_event_of(event).name;
  EXPECT_EQ(log_level_of(HostCore::Event(Heard{NodeId{1}, RoundFailed()})), LogLevel::warning);
  const HostCore::Action refusal = HostCore::Tell{NodeId{1}, Refused()};
  EXPECT_EQ(log_level_of(refusal), LogLevel::warning);
  EXPECT_EQ(log_event_of(refusal).name, "refused");
  EXPECT_EQ(log_level_of(HostCore::Action(HostCore::Tell{NodeId{1}, StartRound()})), std::nullopt);
}

TEST(HostEvents, TellWhereTheJobIs) {
  MembershipOptions options;
  options.nodes_max = 2;
  const auto event = log_event_of(HostCore(options, false, TimePoint()));
  EXPECT_EQ(event.name, "phase");
  EXPECT_EQ(event.level, LogLevel::info);
  EXPECT_THAT(event.fields.text(), HasSubstr(" phase=\"waiting for nodes\" nodes=0 "));
}

}  // namespace
}  // namespace ddp::rendezvous
