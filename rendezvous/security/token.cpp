#include "rendezvous/security/token.hpp"

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/unique_fd.hpp"

namespace ddp::security {
namespace {

constexpr std::size_t kTokenBytesMin = 16, kTokenBytesMax = 512, kTokensMax = 2;
constexpr std::size_t kFileBytesMax = kTokensMax * (kTokenBytesMax + 1);
constexpr const char* kFileOfUser = "/.config/ddprun/token";
constexpr int kLinksMax = 40;  // as many as Linux follows
constexpr uid_t kRoot = 0;

std::string how_to_make(const std::string& path) { return "`umask 077; openssl rand -hex 32 > " + path + "`"; }

std::string mode_of(const struct stat& info) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned>(info.st_mode & 07777));
  return text;
}

bool is_trusted(uid_t owner) { return owner == kRoot || owner == ::geteuid(); }

// Whoever may write to a directory can replace its files.
void check_directory(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return;  // opening the file fails too, and says why
  const bool is_sticky = (info.st_mode & S_ISVTX) != 0 && info.st_uid == kRoot;
  const std::string try_this = ", and make a new token if others may have replaced this one";
  if (!is_trusted(info.st_uid))
    throw TokenError("the directory of the token belongs to user " + std::to_string(info.st_uid) +
                         ", who is neither this user nor root and can replace the token",
                     path, "a directory of your own, such as ~/.config/ddprun" + try_this);
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !is_sticky)
    throw TokenError("the directory of the token has mode " + mode_of(info) + ", so others can replace the token", path,
                     "`chmod go-w " + path + "`" + try_this);
}

// The directory of the file, and those of the symbolic links that lead to it: Kubernetes mounts secrets that way.
void check_directories(std::filesystem::path path) {
  for (int links = 0; links <= kLinksMax; ++links) {
    const auto directory = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    check_directory(directory.string());
    std::error_code is_no_link;
    const auto target = std::filesystem::read_symlink(path, is_no_link);
    if (is_no_link) return;
    path = directory / target;  // an absolute target replaces the directory
  }
}

// Root may give a file to others by its group, or by an ACL, which shows as the group's bits: systemd's credentials and
// Kubernetes' secrets with fsGroup are such files. A user's file is the user's alone.
void check_file(const struct stat& info, const std::string& path) {
  const std::string try_this = "`, and make a new token if others may have read this one";
  if (!is_trusted(info.st_uid))
    throw TokenError("the file with the token belongs to user " + std::to_string(info.st_uid) +
                         ", who is neither this user nor root",
                     path, "`chown " + std::to_string(::geteuid()) + " " + path + try_this);
  const bool is_roots = info.st_uid == kRoot;
  if ((info.st_mode & (is_roots ? S_IWGRP | S_IRWXO : S_IRWXG | S_IRWXO)) != 0)
    throw TokenError("the file with the token has mode " + mode_of(info) + ", so others can read or change it", path,
                     (is_roots ? "`chmod g-w,o= " : "`chmod 600 ") + path + try_this);
}

std::string contents_of(const base::UniqueFd& file, const std::string& path) {
  std::string text(kFileBytesMax + 1, '\0');  // a byte more than fits is too much
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  if (count < 0)
    throw TokenError("the token can't be read: " + std::string(std::strerror(errno)), path, "`cat " + path + "`");
  text.resize(static_cast<std::size_t>(count));
  return text;
}

std::optional<Tokens> read_file(const std::string& path, bool must_exist) {
  check_directories(path);
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && !must_exist && (errno == ENOENT || errno == ENOTDIR)) return {};
  if (!file)
    throw TokenError("the file with the token can't be opened: " + std::string(std::strerror(errno)), path,
                     how_to_make(path));
  struct stat info {};
  ::fstat(file.get(), &info);
  if (!S_ISREG(info.st_mode)) throw TokenError("what should hold the token is no file", path, how_to_make(path));
  check_file(info, path);
  try {
    return Tokens::of_lines(contents_of(file, path));
  } catch (const InvalidArgument& error) {
    throw TokenError(error.what(), path, how_to_make(path));
  }
}

}  // namespace

Token::Token(std::string text) : text_(std::move(text)) {
  if (text_.empty()) throw InvalidArgument("the token is empty");
  if (text_.size() > kTokenBytesMax)
    throw InvalidArgument("the token is longer than " + std::to_string(kTokenBytesMax) + " characters");
  if (!std::all_of(text_.begin(), text_.end(), [](char c) { return c > ' ' && c <= '~'; }))
    throw InvalidArgument("the token has a space, or a character that does not print");
  if (text_.size() < kTokenBytesMin)
    throw InvalidArgument("the token has fewer than " + std::to_string(kTokenBytesMin) + " characters");
}

bool Token::is(std::string_view text) const {
  unsigned char difference = text.size() == text_.size() ? 0 : 1;
  for (std::size_t i = 0; i < text.size(); ++i)
    difference = static_cast<unsigned char>(difference | (text[i] ^ text_[i % text_.size()]));
  return difference == 0;
}

Tokens Tokens::of_lines(const std::string& lines) {
  const auto end = lines.find('\n');
  Tokens out(Token(lines.substr(0, end)));
  if (end == std::string::npos || end + 1 == lines.size()) return out;
  auto second = lines.substr(end + 1);
  if (second.back() == '\n') second.pop_back();
  if (second.find('\n') != std::string::npos) throw InvalidArgument("there are more than two lines with a token each");
  out.all_.emplace_back(std::move(second));
  return out;
}

bool Tokens::has(std::string_view text) const {
  bool out = false;
  for (const auto& token : all_) out |= token.is(text);
  return out;
}

std::optional<Tokens> find_tokens(const std::optional<std::string>& file,
                                  const std::function<std::optional<std::string>(const std::string&)>& environment) {
  if (file) return read_file(*file, true);
  if (const auto text = environment(kTokenVariable)) {
    try {
      return Tokens::of_lines(*text);
    } catch (const InvalidArgument& error) {
      throw TokenError(error.what(), "environment variable DDPRUN_TOKEN",
                       "`export DDPRUN_TOKEN=$(openssl rand -hex 32)`, the same on all nodes, or unset it");
    }
  }
  const auto home = environment("HOME");
  return home && !home->empty() ? read_file(*home + kFileOfUser, false) : std::nullopt;
}

std::optional<Tokens> find_scrape_tokens(const std::optional<std::string>& file, const std::optional<Tokens>& tokens) {
  if (!file) return {};
  auto scrape = read_file(*file, true);
  for (const auto& token : scrape->all())
    if (tokens && tokens->has(token.text()))
      throw TokenError("the token for scrapers is one that lets nodes join", *file, how_to_make(*file));
  return scrape;
}

std::optional<std::string> take_token_variable() {
  const char* const first = std::getenv(kTokenVariable);
  if (first == nullptr) return {};
  std::string text = first;
  const auto name = std::string(kTokenVariable) + "=";
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::strncmp(*entry, name.c_str(), name.size()) == 0)  // unsetenv() leaves the bytes where they are
      ::explicit_bzero(*entry + name.size(), std::strlen(*entry + name.size()));
  ::unsetenv(kTokenVariable);
  return text;
}

rlimit hide_memory() {
  rlimit before{};
  ::getrlimit(RLIMIT_CORE, &before);
  const rlimit none{0, before.rlim_max};  // the hard limit stays, or the programs could not get theirs back
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_DUMPABLE, 0);
  return before;
}

}  // namespace ddp::security
