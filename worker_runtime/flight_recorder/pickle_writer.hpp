// Writes a pickle of plain values (dict, list, str, int, float, bool, None), which any Python 3 reads without a module
// of ours: protocol 2. The same calls as JsonWriter. Pure.
//
// Source: Python's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::flight_recorder {

class PickleWriter {
 public:
  PickleWriter();
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void key(std::string_view name) { text(name); }
  void text(std::string_view value);  // what is not UTF-8 in it becomes U+FFFD
  void integer(std::int64_t value);
  void number(double value);
  void boolean(bool value);
  void none();

  // The whole, once all that was begun has ended. Ends the writer.
  std::string finish();

 private:
  void put(char opcode) { out_ += opcode; }
  void put_little_endian(std::uint64_t value, int bytes);

  std::string out_;
};

}  // namespace ddp::flight_recorder
