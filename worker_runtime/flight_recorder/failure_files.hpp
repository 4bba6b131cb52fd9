// Where the flight recorder's files of a failure go, and the writing of them.
//
// DDP_FLIGHT_RECORDER=PREFIX: PREFIX<rank>, the pickle, as torchfrtrace wants it, and beside it the JSON, under a name
// in which torchfrtrace, which takes every file that contains the prefix for a pickle, does not find the prefix. Else
// they go to the folder that ddprun names (DDPRUN_ROUND_DIRECTORY), which is that of the round's logs, and else to
// $TMPDIR/ddp_flight_<uid>/<run id>/<round>, which nobody else can write to. "/dev/null" as either means no files.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ddp/round.hpp"

namespace ddp::flight_recorder {

// The value of an environment variable; empty where it is not set.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

// What the environment says of it, read when the group is made: other threads may change the environment later.
struct Place {
  std::optional<std::string> prefix{};           // DDP_FLIGHT_RECORDER
  std::optional<std::string> round_directory{};  // DDPRUN_ROUND_DIRECTORY
  std::string temporary_directory = "/tmp";      // TMPDIR
  std::string run_id = "none";                   // TORCHELASTIC_RUN_ID
};

Place place_from(const Lookup& variable);

struct Files {
  std::string directory;  // both are there
  std::string pickle;     // paths; empty: no files are wanted
  std::string json;
  std::string log;           // the newest lines of the process's log
  std::string private_part;  // of the directory: a folder that must be this user's alone; empty: none
};

// Pure.
Files files_of(const Place& place, const RoundId& round, int rank, unsigned user_id);

// The place for the failures of this process from now on; until then the environment says it, when a failure comes.
void set_place(const Place& place);
Place present_place();

// Makes the folder where it is missing, and the files; throws std::system_error. An earlier file of the name makes
// room. In the private folder, removes the files of rounds of this term that are too old (base/recorded_rounds.hpp);
// ddprun does so in the folder of its log files.
void write_files(const Files& files, const std::string& json, const std::string& pickle, const std::string& log);

}  // namespace ddp::flight_recorder
