// Writes JSON piece by piece: values in the order in which they are to stand, in a dict a key before each value.
// The same calls as PickleWriter. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::flight_recorder {

class JsonWriter {
 public:
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void key(std::string_view name);
  void text(std::string_view value);
  void integer(std::int64_t value);
  void number(double value);  // finite
  void boolean(bool value);
  void none();

  // The whole, once all that was begun has ended. Ends the writer.
  std::string finish();

 private:
  void separate();
  void quote(std::string_view text);

  std::string out_;
  bool is_first_ = true;  // of the innermost dict or list, or right after a key
  std::vector<char> open_;
};

}  // namespace ddp::flight_recorder
