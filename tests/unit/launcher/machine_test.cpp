#include "launcher/command_line/machine.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

TEST(ThisMachine, TellsScriptsWithLineEndsOfWindows) {
  const test::ScratchDirectory directory;
  const auto kind_of = [&](const std::string& text) {
    const auto path = (directory.path() / "script").string();
    std::ofstream(path, std::ios::binary) << text;
    EXPECT_EQ(::chmod(path.c_str(), 0755), 0);
    return this_machine([](const std::string&) { return std::nullopt; }).file_kind(path);
  };
  EXPECT_EQ(kind_of("#!/bin/sh\r\ntrue\r\n"), FileKind::windows_script);
  EXPECT_EQ(kind_of("#!/bin/sh\ntrue\r\n"), FileKind::executable);
  EXPECT_EQ(kind_of("true\r\n"), FileKind::executable);
  EXPECT_EQ(kind_of("#!"), FileKind::executable);
  EXPECT_EQ(kind_of("#!/usr/bin/env python3\nimport os\n"), FileKind::python_script);
  EXPECT_EQ(kind_of("#! /opt/python3.11/bin/python3.11 -u\n"), FileKind::python_script);
  EXPECT_EQ(kind_of("#!/opt/python3.11/bin/sh\n"), FileKind::executable);
  EXPECT_EQ(kind_of(""), FileKind::executable);
}

}  // namespace
}  // namespace ddp::launcher
