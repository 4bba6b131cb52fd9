// Writes a file that appears under its name whole, or not at all.
//
// The bytes go to a temporary name in the same folder; commit() brings them to disk and gives them their name. The
// temporary file is locked while its writer lives, so a file that can be locked was left by a process that died.
//
// Large data that begins at a page goes past the page cache (O_DIRECT) if the file system can do that: it costs a tenth
// of the CPU time, the disk begins at once, and the cache keeps what the program reads.
//
// Threads: one at a time. Calls throw CheckpointError with path and reason; the temporary file goes with the object.
#pragma once

#include <cstddef>
#include <filesystem>

#include "base/unique_fd.hpp"

namespace ddp::checkpoint {

class AtomicFile {
 public:
  enum class Existing {
    replace,  // a file of that name makes room, in one step
    refuse,   // a file of that name makes commit() fail, and stays
  };

  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  // removes the temporary file, if any is left

  const std::filesystem::path& path() const { return path_; }

  void write(const void* data, std::size_t bytes);
  void commit(Existing existing);

 private:
  void create();
  bool lock();
  std::size_t write_directly(const char* data, std::size_t bytes);
  void give_name(Existing existing);

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty once there is no such file
  base::UniqueFd fd_;
  std::size_t written_ = 0;  // bytes so far
};

// Brings the entries of a folder to disk.
void sync_directory(const std::filesystem::path& directory);

// Removes temporary files of AtomicFile whose writer has died.
void remove_abandoned(const std::filesystem::path& directory);

}  // namespace ddp::checkpoint
