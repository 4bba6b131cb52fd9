#include "rendezvous/store/codec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ddp/error.hpp"
#include "tests/unit/rendezvous/golden.hpp"

namespace ddp::store {
namespace {

using ::testing::HasSubstr;

// All commands in `bytes`, which must end with one.
std::vector<Command> parse_all(CommandParser& parser, std::string_view bytes) {
  std::vector<Command> commands;
  while (auto command = parser.next(bytes)) commands.push_back(std::move(*command));
  EXPECT_TRUE(bytes.empty());
  return commands;
}

CommandParser validated_parser(ParserLimits limits = {}) {
  CommandParser parser(limits);
  EXPECT_TRUE(parse_all(parser, kGoldenValidate).empty());
  return parser;
}

std::string refusal_of(CommandParser parser, std::string_view bytes) {
  try {
    while (parser.next(bytes)) {
    }
  } catch (const StoreError& error) {
    return error.what();
  }
  return "not refused";
}

std::string u64(std::uint64_t number) { return encode_integer(static_cast<std::int64_t>(number)); }

TEST(StoreCodec, EncodesCommandsAsPyTorchSendsThem) {
  EXPECT_EQ(encode(command::Validate{}), kGoldenValidate);
  for (const auto& exchange : golden_session()) {
    SCOPED_TRACE(exchange.what);
    EXPECT_EQ(encode(exchange.command), exchange.sent);
  }
}

TEST(StoreCodec, EncodesAnswersAsPyTorchSendsThem) {
  EXPECT_EQ(encode_nonce(0x0eb1), bytes_of("b1 0e 00 00"));
  EXPECT_EQ(encode_value("v"), bytes_of("01 00 00 00 00 00 00 00 76"));
  EXPECT_EQ(encode_value(""), bytes_of("00 00 00 00 00 00 00 00"));
  EXPECT_EQ(encode_integer(5), bytes_of("05 00 00 00 00 00 00 00"));
  EXPECT_EQ(encode_integer(-2), bytes_of("fe ff ff ff ff ff ff ff"));
  EXPECT_EQ(kReady, 0);
  EXPECT_EQ(kNotReady, 1);
  EXPECT_EQ(kWaitFulfilled, 0);
  EXPECT_EQ(kWaitCancelled, 1);
  EXPECT_EQ(decode_u64(bytes_of("01 02 00 00 00 00 00 80")), 0x8000000000000201u);
  EXPECT_EQ(decode_u32(bytes_of("b1 0e 00 80")), 0x80000eb1u);
}

TEST(StoreCodec, ParsesEveryCommandHoweverItIsCut) {
  for (const auto& exchange : golden_session()) {
    SCOPED_TRACE(exchange.what);
    const std::string bytes = kGoldenValidate + exchange.sent;
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      CommandParser parser;
      EXPECT_TRUE(parse_all(parser, bytes.substr(0, cut)).empty()) << "cut at " << cut;
      EXPECT_EQ(parse_all(parser, bytes.substr(cut)), std::vector{exchange.command}) << "cut at " << cut;
    }
  }
}

TEST(StoreCodec, ParsesSessionByteByByte) {
  std::string bytes = kGoldenValidate;
  std::vector<Command> want;
  for (const auto& exchange : golden_session()) {
    bytes += exchange.sent;
    want.push_back(exchange.command);
  }
  CommandParser whole;
  EXPECT_EQ(parse_all(whole, bytes), want);
  CommandParser parser;
  std::vector<Command> got;
  for (const char byte : bytes) {
    for (auto& command : parse_all(parser, {&byte, 1})) got.push_back(std::move(command));
  }
  EXPECT_EQ(got, want);
}

TEST(StoreCodec, RandomCommandsSurviveRandomCuts) {
  std::mt19937_64 random(20'261);
  const auto below = [&random](std::uint64_t bound) { return random() % bound; };
  const auto text = [&] {
    std::string bytes(below(10) == 0 ? below(200'000) : below(20), '\0');
    for (char& byte : bytes) byte = static_cast<char>(below(256));
    return bytes;
  };
  const auto key = [&] { return text().substr(0, kKeyBytesMax); };
  const auto keys = [&] {
    std::vector<std::string> list(below(6));
    for (auto& item : list) item = key();
    return list;
  };
  std::string bytes = kGoldenValidate;
  std::vector<Command> want;
  for (int i = 0; i < 600; ++i) {
    Command command;
    switch (1 + i % 18) {
      case 1: command = command::Set{key(), text()}; break;
      case 2: command = command::CompareSet{key(), text(), text()}; break;
      case 3: command = command::Get{key()}; break;
      case 4: command = command::Add{key(), static_cast<std::int64_t>(random())}; break;
      case 5: command = command::Check{keys()}; break;
      case 6: command = command::Wait{keys()}; break;
      case 7: command = command::KeyCount{}; break;
      case 8: command = command::Remove{key()}; break;
      case 9: command = command::Append{key(), text()}; break;
      case 10: command = command::MultiGet{keys()}; break;
      case 11: command = command::MultiSet{{{key(), text()}, {key(), text()}}}; break;
      case 12: command = command::CancelWait{}; break;
      case 13: command = command::Ping{static_cast<std::uint32_t>(random())}; break;
      case 14: command = command::QueuePush{key(), text()}; break;
      case 15: command = command::QueuePop{key()}; break;
      case 16: command = command::QueueLength{key()}; break;
      case 17: command = command::ListKeys{}; break;
      case 18: command = command::Barrier{key(), static_cast<std::int64_t>(random())}; break;
    }
    bytes += encode(command);
    want.push_back(std::move(command));
  }
  CommandParser parser;
  std::vector<Command> got;
  std::string_view left = bytes;
  while (!left.empty()) {
    const auto piece = left.substr(0, 1 + below(below(4) == 0 ? 100'000 : 30));
    left.remove_prefix(piece.size());
    for (auto& command : parse_all(parser, piece)) got.push_back(std::move(command));
  }
  EXPECT_TRUE(got == want);  // not EXPECT_EQ, which would print megabytes
}

TEST(StoreCodec, EmptyListsAreCommandsToo) {
  auto parser = validated_parser();
  for (const Command& command : {Command(command::Check{}), Command(command::Wait{}), Command(command::MultiGet{}),
                                 Command(command::MultiSet{})}) {
    EXPECT_EQ(encode(command).substr(1), u64(0));
    EXPECT_EQ(parse_all(parser, encode(command)), std::vector{command});
  }
}

TEST(StoreCodec, LongestListTakesLinearTime) {
  command::Wait wait;
  for (std::size_t i = 0; i < kListCountMax; ++i) wait.keys.push_back(std::to_string(i));
  const std::string bytes = encode(wait);
  auto parser = validated_parser();
  std::vector<Command> got;
  for (const char byte : bytes) {  // parsing anew with each byte would take hours
    std::string_view piece(&byte, 1);
    if (auto command = parser.next(piece)) got.push_back(std::move(*command));
  }
  EXPECT_TRUE(got == std::vector<Command>{wait});
}

TEST(StoreCodec, WhatDoesNotBeginWithValidateIsRefused) {
  EXPECT_THAT(refusal_of(CommandParser(), "GET / HTTP/1.1\r\n"), AllOf(HasSubstr("0x47"), HasSubstr("HTTP")));
  EXPECT_THAT(refusal_of(CommandParser(), bytes_of("16 03 01")), AllOf(HasSubstr("0x16"), HasSubstr("TLS")));
  EXPECT_THAT(refusal_of(CommandParser(), golden_session()[0].sent), HasSubstr("0x0d"));
  EXPECT_THAT(refusal_of(CommandParser(), bytes_of("00 ce f7 85 3d")), HasSubstr("0x3d85f7ce"));
  EXPECT_EQ(refusal_of(CommandParser(), bytes_of("00 ce f7 85")), "not refused");
}

TEST(StoreCodec, ValidateAloneIsEnoughAndComesOnce) {
  auto parser = validated_parser();
  EXPECT_EQ(parse_all(parser, bytes_of("07")), std::vector<Command>{command::KeyCount{}});  // no PING: PyTorch 2.2
  EXPECT_THAT(refusal_of(parser, kGoldenValidate), HasSubstr("second time"));
}

TEST(StoreCodec, UnknownCommandIsNamed) {
  EXPECT_THAT(refusal_of(validated_parser(), bytes_of("13")), HasSubstr("command 19 is unknown"));
  EXPECT_THAT(refusal_of(validated_parser(), bytes_of("ff")), HasSubstr("command 255 is unknown"));
}

TEST(StoreCodec, LengthBeyondItsLimitIsRefusedBeforeItsBytesCome) {
  const std::string key = u64(1) + "k";
  const struct {
    const char* what;
    std::string bytes;
    const char* want;
  } cases[] = {
      {"key", "\x01" + u64(kKeyBytesMax + 1), "SET: a key's length, 8193 is beyond the limit of 8192"},
      {"value", "\x01" + key + u64(kValueBytesMax + 1), "SET: a value's length, 8388609"},
      {"expected", "\x02" + key + u64(kValueBytesMax + 1), "COMPARE_SET: a value's length"},
      {"desired", "\x02" + key + u64(0) + u64(kValueBytesMax + 1), "COMPARE_SET: a value's length"},
      {"huge", "\x09" + key + u64(~std::uint64_t{0}), "APPEND: a value's length, 18446744073709551615"},
      {"list", "\x05" + u64(kListCountMax + 1), "CHECK: the number of keys, 131073 is beyond the limit of 131072"},
      {"negative count", "\x0b" + u64(~std::uint64_t{0}), "MULTI_SET: the number of keys, 18446744073709551615"},
      {"key in list", "\x0a" + u64(2) + key + u64(kKeyBytesMax + 1), "MULTI_GET: a key's length"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_THAT(refusal_of(validated_parser(), c.bytes), HasSubstr(c.want));
    EXPECT_EQ(refusal_of(validated_parser(), std::string_view(c.bytes).substr(0, c.bytes.size() - 1)), "not refused");
  }
}

TEST(StoreCodec, TextsOfExactlyTheLimitPass) {
  const Command command = command::Set{std::string(kKeyBytesMax, 'k'), std::string(kValueBytesMax, 'v')};
  auto parser = validated_parser();
  EXPECT_TRUE(parse_all(parser, encode(command)) == std::vector{command});
}

TEST(StoreCodec, WholeCommandHasLimit) {
  ParserLimits limits;
  limits.command_bytes_max = 1 + 8 + 2 * (8 + 1 + 8 + 10);
  const std::string ten(10, 'v');
  const Command fits = command::MultiSet{{{"a", ten}, {"b", ten}}};
  auto parser = validated_parser(limits);
  EXPECT_EQ(parse_all(parser, encode(fits)), std::vector{fits});
  EXPECT_THAT(refusal_of(parser, encode(command::MultiSet{{{"a", ten}, {"b", ten + "v"}}})),
              HasSubstr("MULTI_SET: the command's length, 64 is beyond the limit of 63"));
}

TEST(StoreCodec, KeysAreShownWithoutControlCharacters) {
  EXPECT_EQ(key_text(std::string("a b\n\xff\0", 6)), "\"a b\\x0a\\xff\\x00\"");
  EXPECT_EQ(key_text(std::string(65, 'k')), "\"" + std::string(64, 'k') + "...\"");
}

TEST(StoreCodec, CountsWhatTheStartOfACommandOccupies) {
  auto parser = validated_parser();
  const auto take = [&parser](std::string_view bytes) {
    EXPECT_FALSE(parser.next(bytes));
    return parser.memory_bytes();
  };
  EXPECT_EQ(take(""), 0u);
  const std::string set = encode(command::Set{"k", std::string(1u << 20, 'v')});
  EXPECT_LT(take(std::string_view(set).substr(0, 20)), 1000u);  // what was announced and has not come does not count
  EXPECT_GE(take(std::string_view(set).substr(20, 500'000)), 500'000u);
  std::string_view rest = std::string_view(set).substr(500'020);
  EXPECT_TRUE(parser.next(rest));
  EXPECT_EQ(parser.memory_bytes(), 0u);

  std::vector<KeyValue> entries(10'000);
  const std::string multi_set = encode(command::MultiSet{entries});
  EXPECT_GE(take(std::string_view(multi_set).substr(0, multi_set.size() - 1)),
            2 * entries.size() * sizeof(std::string));
  rest = std::string_view(multi_set).substr(multi_set.size() - 1);
  EXPECT_TRUE(parser.next(rest));
  EXPECT_EQ(parser.memory_bytes(), 0u);
  EXPECT_LT(take("\x03"), 1000u);  // the room for the list is given back
}

}  // namespace
}  // namespace ddp::store
