#include "base/bounded_output.hpp"

#include <gtest/gtest.h>

namespace ddp::base {
namespace {

std::string take_all(BoundedOutput& output) {
  std::string out;
  while (!output.front().empty()) {
    out += output.front();
    output.pop(output.front().size());
  }
  return out;
}

TEST(BoundedOutput, KeepsOrderOverPartialWrites) {
  BoundedOutput output(100, "ddprun");
  output.push("one\n");
  output.push("two\n");
  output.pop(2);
  output.push("three\n");
  EXPECT_EQ(output.front(), "e\ntwo\nthree\n");
  EXPECT_EQ(take_all(output), "e\ntwo\nthree\n");
  EXPECT_TRUE(output.empty());
}

TEST(BoundedOutput, DropsWhatDoesNotFitAndSaysHowMuch) {
  BoundedOutput output(10, "ddprun");
  output.push("12345678\n");
  output.push("a\nb\nc\n");
  output.push("d\n");  // would fit, but the order says that it came after what was dropped
  EXPECT_EQ(output.front(), "12345678\n");
  const auto text = take_all(output);
  EXPECT_EQ(text.substr(0, 9), "12345678\n");
  EXPECT_NE(text.find("dropped 4 lines"), std::string::npos) << text;
  EXPECT_EQ(text.back(), '\n');
  output.push("again\n");
  EXPECT_EQ(take_all(output), "again\n");
}

TEST(BoundedOutput, WhatMustNotBeLostComesAfterTheWordOfWhatWas) {
  BoundedOutput output(10, "ddprun");
  output.push("12345678\n");
  output.push("lost\n");
  output.push_always("error: this stays\n");
  const auto text = take_all(output);
  EXPECT_EQ(text.find("12345678\nddprun: dropped 1 lines"), 0u) << text;
  EXPECT_NE(text.find("\nerror: this stays\n"), std::string::npos) << text;
}

TEST(BoundedOutput, TheWordOfDroppedLinesStartsOnALineOfItsOwn) {
  BoundedOutput output(4, "ddprun");
  output.push("abc");
  output.push("lost\n");
  EXPECT_EQ(take_all(output).substr(0, 10), "abc\nddprun");
}

}  // namespace
}  // namespace ddp::base
