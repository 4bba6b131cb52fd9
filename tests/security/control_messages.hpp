// Messages of the control channel as a peer that keeps to no rule writes them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "rendezvous/wire/message_json.hpp"

namespace ddp::test {

using Json = nlohmann::json;

// A sound one, to be changed.
inline Json json_of(const rendezvous::ToMembership& message) { return Json::parse(rendezvous::to_json(message)); }
inline Json json_of(const rendezvous::ToAgent& message) { return Json::parse(rendezvous::to_json(message)); }

// Of a node of two in the job "job", with one worker.
inline Json hello_of(char key_digit) {
  rendezvous::Hello hello;
  hello.run_id = "job";
  hello.node_key = std::string(32, key_digit);
  hello.host_name = "attacker";
  hello.nodes_min = hello.nodes_max = 2;
  return json_of(rendezvous::ToMembership(hello));
}

// What a terminal obeys, and what looks like lines of ddprun.
inline const std::string kForged =
    "x\nddprun: forged\nwhere: forged\x1b]0;forged\x07\xc2\x9b"
    "2J\xe2\x80\xa8"
    "ddprun: forged\xe2\x80\xae";

}  // namespace ddp::test
