#include "base/printable.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ddp::base {
namespace {

TEST(Printable, TextOfAnyLanguageStaysAsItIs) {
  // The last bytes of these letters would be C1 controls if they stood alone.
  for (const std::string text : {"", "rank 5 was killed by SIGKILL", "caf\xc3\xa9", "\xc3\x9b\xc3\x85",
                                 "\xe6\xbc\xa2\xe5\xad\x97", "\xf0\x9f\x9a\x80", "\xe2\x9a\xa0\xef\xb8\x8f",
                                 "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d", "C:\\new\\x1b", "\xef\xbf\xbd"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_TRUE(is_printable(text)) << text;
  }
}

TEST(Printable, WhatATerminalWouldObeyIsEscaped) {
  const struct {
    std::string text, want;
  } cases[] = {{"a\nddprun: b", "a\\nddprun: b"},
               {"a\r\n", "a\\r\\n"},
               {"a\tb", "a b"},
               {std::string("a\0b", 3), "a\\x00b"},
               {"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"},
               {"\x7f", "\\x7f"},
               {"\xc2\x9b"
                "2J",
                "\\u009b2J"},
               {"\xc2\x80\xc2\x85\xc2\x9f", "\\u0080\\u0085\\u009f"},
               {"\xc2\xa0", "\xc2\xa0"},
               {"\xe2\x80\xa8\xe2\x80\xa9", "\\u2028\\u2029"},
               {"\xe2\x80\xaa\xe2\x80\xae", "\\u202a\\u202e"},
               {"\xe2\x81\xa6\xe2\x81\xa9", "\\u2066\\u2069"},
               {"\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", "\\u200e\\u200f\\u061c"}};
  for (const auto& c : cases) {
    EXPECT_EQ(printable(c.text), c.want);
    EXPECT_EQ(is_printable(c.text), c.text == c.want) << c.want;
    EXPECT_TRUE(is_printable(c.want)) << c.want;
  }
}

TEST(Printable, WhatNobodySeesIsEscaped) {
  const struct {
    std::string text, want;
  } cases[] = {{"a\xc2\xad"
                "b",
                "a\\u00adb"},
               {"\xe2\x80\x8b\xe2\x80\x8c\xe2\x80\x8d", "\\u200b\\u200c\\u200d"},
               {"\xe2\x81\xa0\xe2\x81\xa4\xe2\x81\xaf", "\\u2060\\u2064\\u206f"},
               {"\xef\xbb\xbf", "\\ufeff"},
               {"\xcd\x8f\xe1\xa0\x8e", "\\u034f\\u180e"},
               {"\xe1\x85\x9f\xe1\x85\xa0\xe3\x85\xa4\xef\xbe\xa0", "\\u115f\\u1160\\u3164\\uffa0"},
               {"\xef\xbf\xb9\xef\xbf\xbb", "\\ufff9\\ufffb"},
               {"\xf3\xa0\x81\x81", "\\U000e0041"}};
  for (const auto& c : cases) {
    EXPECT_EQ(printable(c.text), c.want);
    EXPECT_FALSE(is_printable(c.text)) << c.want;
  }
}

TEST(Printable, WhatIsNotUtf8IsEscapedByteByByte) {
  const struct {
    std::string text, want;
  } cases[] = {{"\x9b"
                "2J",
                "\\x9b2J"},                          // C1 to a terminal of 8 bits
               {"caf\xe9", "caf\\xe9"},              // Latin 1
               {"\xc3", "\\xc3"},                    // ends within a character
               {"\xe6\xbc", "\\xe6\\xbc"},           //
               {"\xe6\xbc\nx", "\\xe6\\xbc\\nx"},    //
               {"\xc0\x8a", "\\xc0\\x8a"},           // a line feed in too many bytes
               {"\xe0\x82\x9b", "\\xe0\\x82\\x9b"},  // a C1 control, the same
               {"\xed\xa0\x80", "\\xed\\xa0\\x80"},  // half of a surrogate pair
               {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
               {"\xf8\x88\x80\x80\x80", "\\xf8\\x88\\x80\\x80\\x80"},
               {"\xc3\xa9\x9b\xc3\xa9", "\xc3\xa9\\x9b\xc3\xa9"}};
  for (const auto& c : cases) {
    EXPECT_EQ(printable(c.text), c.want);
    EXPECT_FALSE(is_printable(c.text)) << c.want;
  }
}

TEST(Printable, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable("12345678", 8), "12345678");
  EXPECT_EQ(printable("123456789", 8), "12345...");
  EXPECT_EQ(printable("1234\xc3\xa9"
                      "789",
                      8),
            "1234...");
  EXPECT_EQ(printable("12\x1b\x1b", 8), "12...");
  for (std::size_t bytes_max = 3; bytes_max < 20; ++bytes_max) {
    const auto cut = printable("\xe6\xbc\xa2\x1b\xc3\xa9x\xe5\xad\x97\xff\xff", bytes_max);
    EXPECT_LE(cut.size(), bytes_max);
    EXPECT_EQ(printable(cut, bytes_max), cut);
  }
}

}  // namespace
}  // namespace ddp::base
