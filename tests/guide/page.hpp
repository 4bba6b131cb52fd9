// Reads what a page of docs/guide asks its reader to do.
//
//   Save this as `train.py`:             the fenced block after a paragraph with these words is a file
//   ```sh                                commands; with `# on node1` as the first line, commands on that host
//   ```text                              what the commands before it print
//   (not run by the tests: it needs X)   in the paragraph before commands: the tests leave these commands out
//
// Pure. Other blocks are for the eye only.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddp::test {

struct PageBlock {
  enum class Kind { file, commands, output };
  Kind kind;
  std::string name;     // of the file, or of the host; empty for commands on the reader's own machine
  std::string text;     // each line ends with '\n'
  int line;             // of the block's first line, from 1
  std::string not_run;  // why the tests leave these commands out; empty if they run them
};

std::vector<PageBlock> blocks_of(const std::string& page);

// The complete commands of ddprun in inline code, such as those in tables: `ddprun train.py`.
std::vector<std::string> inline_commands_of(const std::string& page);

// Names that differ from machine to machine, and what pages say instead: this host's, the folder's.
using Names = std::vector<std::pair<std::string, std::string>>;

// Lines of `expected` that were not printed. The order of lines, the rank before a line, numbers, durations and blanks
// may differ, because ranks run at once and machines differ. A line `...` stands for any lines.
std::vector<std::string> missing_lines(const std::string& expected, const std::string& printed, const Names& names);

}  // namespace ddp::test
