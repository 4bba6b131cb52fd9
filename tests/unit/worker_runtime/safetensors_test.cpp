#include "ddp/checkpoint.hpp"

#include "ddp/error.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

using ddp::CheckpointError;
using ddp::NamedTensor;
using ddp::SafetensorsFile;
using ddp::save_safetensors;
using ddp::test::contents_of;
using ddp::test::ScratchDirectory;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A file of this header and this many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_bytes, 'x');
}

std::string refusal(const fs::path& path) {
  try {
    SafetensorsFile::open(path);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "accepted";
}

class Safetensors : public testing::Test {
 protected:
  ScratchDirectory scratch_;
  fs::path path_ = scratch_.path() / "model.safetensors";
  std::vector<float> weight_ = {1, 2, 3, 4, 5, 6};
  std::vector<double> state_ = {0.25, -1e300};
  std::vector<std::int64_t> step_ = {std::int64_t{1} << 60};
  std::vector<float> none_;

  std::vector<NamedTensor> tensors() const {
    return {{"weight", {2, 3}, weight_}, {"state", {2}, state_}, {"step", {}, step_}, {"none", {0, 4}, none_}};
  }
};

TEST_F(Safetensors, ReadsBackWhatWasSaved) {
  save_safetensors(path_, tensors(), {{"made by", "a test, \"quoted\""}, {"π", "3.14"}});
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_EQ(file.path(), path_);
  EXPECT_EQ(file.metadata(), (ddp::Metadata{{"made by", "a test, \"quoted\""}, {"π", "3.14"}}));
  EXPECT_EQ(file.tensors().size(), 4U);
  std::vector<float> weight(6);
  std::vector<double> state(2);
  std::vector<std::int64_t> step(1);
  file.read("weight", {2, 3}, weight);
  file.read("state", {2}, state);
  file.read("step", {}, step);
  file.read("none", {0, 4}, none_);
  EXPECT_EQ(weight, weight_);
  EXPECT_EQ(state, state_);
  EXPECT_EQ(step, step_);
}

TEST_F(Safetensors, HasTheBytesOfTheFormat) {
  save_safetensors(path_, {{"b", {2}, ddp::ConstMemoryRange(weight_.data(), 2)}, {"a", {1}, step_}});
  const std::string header =
      R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";
  const std::string bytes = contents_of(path_);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0U);
  ASSERT_EQ(bytes.size(), 8 + length + 16);
  std::string padded = header;
  padded.resize(length, ' ');
  EXPECT_EQ(bytes.substr(8, length), padded);
  EXPECT_EQ(std::memcmp(bytes.data() + 8 + length, step_.data(), 8), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 8 + length + 8, weight_.data(), 8), 0);
}

TEST_F(Safetensors, HasEveryDataType) {
  const struct {
    ddp::DataType type;
    const char* dtype;
  } cases[] = {{ddp::DataType::float32, "F32"},        {ddp::DataType::float64, "F64"},
               {ddp::DataType::int64, "I64"},          {ddp::DataType::float16, "F16"},
               {ddp::DataType::bfloat16, "BF16"},      {ddp::DataType::int32, "I32"},
               {ddp::DataType::uint8, "U8"},           {ddp::DataType::int8, "I8"},
               {ddp::DataType::boolean, "BOOL"},       {ddp::DataType::float8_e4m3fn, "F8_E4M3"},
               {ddp::DataType::float8_e5m2, "F8_E5M2"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.dtype);
    save_safetensors(path_, {{"a", {1}, ddp::ConstMemoryRange(weight_.data(), 1, c.type)}, {"b", {2}, state_}});
    EXPECT_THAT(contents_of(path_), HasSubstr(std::string(R"("a":{"dtype":")") + c.dtype + '"'));
    std::vector<std::byte> value(ddp::size_of(c.type));
    std::vector<double> state(2);
    const SafetensorsFile file = SafetensorsFile::open(path_);
    file.read("a", {1}, {value.data(), 1, c.type});
    file.read("b", {2}, state);
    EXPECT_EQ(std::memcmp(value.data(), weight_.data(), value.size()), 0);
    EXPECT_EQ(state, state_);
  }
}

TEST_F(Safetensors, SavesNoTensorsToo) {
  save_safetensors(path_, {});
  EXPECT_TRUE(SafetensorsFile::open(path_).tensors().empty());
}

TEST_F(Safetensors, RefusesAFileCutAtAnyLength) {
  save_safetensors(path_, tensors(), {{"key", "value"}});
  const std::string whole = contents_of(path_);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(path_, whole.substr(0, length));
    ASSERT_THAT(refusal(path_), HasSubstr("can't read " + path_.string() + ": ")) << "cut at byte " << length;
  }
  write(path_, whole + "x");
  EXPECT_THAT(refusal(path_), HasSubstr("the header speaks of"));
  write(path_, whole);
  EXPECT_EQ(refusal(path_), "accepted");
}

// Any single byte of the length and the header, changed in any way: refused, or accepted as another valid header, but
// never a crash, an endless loop or a tensor that reaches beyond the file.
TEST_F(Safetensors, SurvivesAnyChangedHeader) {
  save_safetensors(path_, tensors(), {{"key", "value"}});
  const std::string whole = contents_of(path_);
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof length);
  std::mt19937 random(1);  // NOLINT: the same changes in every run
  for (int round = 0; round < 4'000; ++round) {
    std::string changed = whole;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      changed[random() % (8 + length)] = static_cast<char>(random());
    }
    write(path_, changed);
    try {
      const SafetensorsFile file = SafetensorsFile::open(path_);
      for (const auto& [name, tensor] : file.tensors()) {
        ASSERT_LE(tensor.offset + tensor.count * size_of(tensor.type), changed.size());
      }
    } catch (const CheckpointError&) {
      continue;  // any other exception fails the test
    }
  }
}

TEST_F(Safetensors, RefusesWhatTheFormatForbids) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const struct {
    const char* what;
    std::string header;
    std::size_t data_bytes;
    const char* want;
  } cases[] = {
      {"empty header", "", 0, "does not start with {"},
      {"space first", " {}", 0, "does not start with {"},
      {"array", "[]", 0, "does not start with {"},
      {"not JSON", "{\"a\"", 0, "not JSON"},
      {"text after the end", "{}x", 0, "not JSON"},
      {"two objects", "{}{}", 0, "not JSON"},
      {"not UTF-8", "{\"\xff\":{}}", 0, "not JSON"},
      {"same name twice", "{" + a + "," + a + "}", 8, "the name a stands twice"},
      {"same field twice", R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8,
       "dtype stands twice"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "stands twice"},
      {"metadata not text", R"({"__metadata__":{"step":3}})", 0, "a number where it does not belong"},
      {"metadata nested", R"({"__metadata__":{"step":{}}})", 0, "an object where it does not belong"},
      {"unknown field", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":"x"}})", 8, "a string where"},
      {"unknown null", R"({"a":null})", 8, "null where it does not belong"},
      {"tensor without dtype", R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8, "tensor a has no dtype"},
      {"tensor without shape", R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8, "tensor a has no shape"},
      {"tensor without offsets", R"({"a":{"dtype":"F32","shape":[2]}})", 8, "no pair of data_offsets"},
      {"three offsets", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8, "no pair of data_offsets"},
      {"negative extent", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "a negative number"},
      {"fraction", R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "no integer"},
      {"nested array", R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8, "an array where"},
      {"I16", R"({"a":{"dtype":"I16","shape":[4],"data_offsets":[0,8]}})", 8,
       "tensor a is of type I16, which is not supported"},
      {"U16", R"({"a":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}})", 8, "type U16, which is not supported"},
      {"unknown type", R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, "type F33, which is unknown"},
      {"shape overflows", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "overflows"},
      {"bytes overflow", R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0, "overflows"},
      {"extent overflows", R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8,
       "overflows"},
      {"shape is not the size", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "needs 12 bytes"},
      {"ends before it begins", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "needs 8 bytes"},
      {"hole before", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12, "start after a hole"},
      {"hole after", "{" + a + "}", 12, "the data have 12 bytes but the header speaks of 8"},
      {"hole between", "{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16, "after a hole"},
      {"overlap", "{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12, "tensor b overlap"},
      {"beyond the file", R"({"a":{"dtype":"F32","shape":[200],"data_offsets":[0,800]}})", 8,
       "the header speaks of 800"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    write(path_, file_of(c.header, c.data_bytes));
    EXPECT_THAT(refusal(path_), AllOf(HasSubstr(path_.string()), HasSubstr(c.want)));
  }
}

TEST_F(Safetensors, RefusesDeepNestingWithoutDescending) {
  std::string header = R"({"a":)" + std::string(1'000'000, '[');
  write(path_, file_of(header, 0));
  EXPECT_THAT(refusal(path_), HasSubstr("an array where it does not belong"));
}

TEST_F(Safetensors, RefusesLengthsBeyondFileAndLimit) {
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{100'000'001}, ~std::uint64_t{0}}) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    write(path_, bytes + "{}");
    EXPECT_THAT(refusal(path_), HasSubstr("a header of " + std::to_string(length) + " bytes is announced"));
  }
}

TEST_F(Safetensors, RefusesWhatIsNoFile) {
  EXPECT_THAT(refusal(scratch_.path() / "absent"), HasSubstr("No such file"));
  EXPECT_THAT(refusal(scratch_.path()), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(path_), HasSubstr("not a regular file"));
}

TEST_F(Safetensors, ReadRefusesAnotherTypeOrShape) {
  save_safetensors(path_, tensors());
  const SafetensorsFile file = SafetensorsFile::open(path_);
  std::vector<float> six(6);
  std::vector<double> six_doubles(6);
  EXPECT_THROW(file.read("bias", {2, 3}, six), CheckpointError);
  EXPECT_THROW(file.read("weight", {3, 2}, six), CheckpointError);
  EXPECT_THROW(file.read("weight", {2, 3}, six_doubles), CheckpointError);
  EXPECT_THROW(file.read("weight", {2, 3}, ddp::MemoryRange(six.data(), 5)), CheckpointError);
}

TEST_F(Safetensors, ReadNoticesAFileThatWasCutMeanwhile) {
  save_safetensors(path_, tensors());
  const SafetensorsFile file = SafetensorsFile::open(path_);
  fs::resize_file(path_, fs::file_size(path_) - 1);
  EXPECT_THROW(file.read("weight", {2, 3}, weight_), CheckpointError);
}

TEST_F(Safetensors, AnOpenFileOutlivesItsReplacement) {
  save_safetensors(path_, tensors());
  const SafetensorsFile file = SafetensorsFile::open(path_);
  const std::vector<float> other(6, -1);
  save_safetensors(path_, {{"weight", {2, 3}, other}});
  std::vector<float> read(6);
  file.read("weight", {2, 3}, read);
  EXPECT_EQ(read, weight_);
  SafetensorsFile::open(path_).read("weight", {2, 3}, read);
  EXPECT_EQ(read, other);
}

TEST_F(Safetensors, SaveRefusesWhatItCannotExpress) {
  const auto save = [&](const NamedTensor& tensor) { save_safetensors(path_, {tensor}); };
  EXPECT_THROW(save({"w", {7}, weight_}), ddp::InvalidArgument);
  EXPECT_THROW(save({"w", {-2, -3}, weight_}), ddp::InvalidArgument);
  EXPECT_THROW(save({"w", {6}, {weight_.data(), 6, ddp::DataType::float32, {ddp::Device::Kind::cuda, 0}}}),
               ddp::InvalidArgument);
  EXPECT_THROW(save({"__metadata__", {6}, weight_}), CheckpointError);
  EXPECT_THROW(save({"\xff", {6}, weight_}), CheckpointError);
  EXPECT_THROW(save_safetensors(path_, {{"w", {6}, weight_}, {"w", {2}, state_}}), CheckpointError);
  EXPECT_TRUE(fs::is_empty(scratch_.path())) << "a temporary file stayed";
}

TEST_F(Safetensors, SaveNamesPathAndReason) {
  const fs::path path = scratch_.path() / "absent" / "model.safetensors";
  try {
    save_safetensors(path, tensors());
    FAIL() << "saved into a folder that does not exist";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(path.string()), HasSubstr("No such file or directory")));
  }
}

TEST_F(Safetensors, SaveNamesThePathForNamesThatItCannotExpress) {
  const struct {
    std::vector<NamedTensor> tensors;
    const char* want;
  } cases[] = {
      {{{"__metadata__", {6}, weight_}}, "the name __metadata__ is reserved or used twice"},
      {{{"w", {6}, weight_}, {"w", {6}, weight_}}, "the name w is reserved or used twice"},
      {{{"\xff", {6}, weight_}}, "a name or a part of the metadata is not UTF-8"},
  };
  for (const auto& c : cases) {
    try {
      save_safetensors(path_, c.tensors);
      FAIL() << "saved, though " << c.want;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("can't write " + path_.string() + ": " + c.want),
                                      HasSubstr("\nwhere: "), HasSubstr("\ntry:   ")));
    }
  }
}

// As on a full disk: the write stops half-way. In a child, because the limit can't be taken back by everybody.
TEST_F(Safetensors, AnOlderFileOutlivesAWriteThatFails) {
  save_safetensors(path_, tensors());
  const std::string before = contents_of(path_);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    const std::vector<double> large(10'000);
    int status = 1;
    try {
      if (::setrlimit(RLIMIT_FSIZE, &limit) == 0) save_safetensors(path_, {{"large", {10'000}, large}});
    } catch (const CheckpointError& error) {
      status = std::string(error.what()).find("File too large") == std::string::npos ? 2 : 0;
    }
    ::_exit(status);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(contents_of(path_), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 1) << "a temporary file stayed";
}

}  // namespace
