// A machine as the tests of the command line want it: no GPU, two CPUs, a few files.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "launcher/command_line/launch_config.hpp"

namespace ddp::launcher {

class AMachine : public ::testing::Test {
 protected:
  LaunchConfig parse(const std::vector<std::string>& arguments) const {
    return parse_command_line(arguments, lookup(),
                              {gpus, xpus, cpu_count,
                               [this](const std::string& path) {
                                 const auto found = files.find(path);
                                 return found == files.end() ? FileKind::missing : found->second;
                               },
                               one_core,
                               [this](const std::optional<std::string>& file) {
                                 token_looked_for_at.push_back(file);
                                 return token;
                               },
                               [this](const std::string& path) {
                                 const auto found = texts.find(path);
                                 return found == texts.end() ? std::nullopt : std::optional(found->second);
                               }});
  }

  // For options alone: a program is added.
  LaunchConfig parse_options(std::vector<std::string> arguments) const {
    arguments.emplace_back("true");
    return parse(arguments);
  }

  EnvironmentLookup lookup() const {
    return [this](const std::string& name) {
      const auto found = environment.find(name);
      return found == environment.end() ? std::nullopt : std::optional(found->second);
    };
  }

  // Runs `what` and expects a UsageError that holds these texts.
  template <typename What>
  static void expect_usage_error(const What& what, const char* says, const char* where, const char* remedy) {
    try {
      what();
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(says));
      EXPECT_THAT(error.where(), ::testing::HasSubstr(where));
      EXPECT_FALSE(error.where().empty());
      EXPECT_THAT(error.try_this(), ::testing::HasSubstr(remedy));
      EXPECT_FALSE(error.try_this().empty());
    }
  }

  int gpus = 0, xpus = 0, cpu_count = 2;
  bool one_core = false;
  std::optional<security::Token> token{security::Token("secret_of_a_test")};
  mutable std::vector<std::optional<std::string>> token_looked_for_at;
  std::map<std::string, std::string> environment{{"PATH", "/usr/bin:/bin"}};
  std::map<std::string, std::string> texts;
  std::map<std::string, FileKind> files{
      {"/bin/true", FileKind::executable},       {"/usr/bin/python3", FileKind::executable},
      {"./trainer", FileKind::executable},       {"notes.txt", FileKind::not_executable},
      {"./notes.txt", FileKind::not_executable}, {"/tmp", FileKind::directory},
      {"/tmp/.", FileKind::directory},           {"/closed", FileKind::directory},
      {"train.py", FileKind::not_executable},    {"/venv/bin/python", FileKind::executable}};
};

}  // namespace ddp::launcher
