#include "examples/train_breast_cancer/data.hpp"

#include "examples/train_breast_cancer/input_error.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using train::Dataset;
using train::InputError;
using train::read_csv;
using train::Samples;
using train::Split;
using train::split_and_standardise;

const std::string kRealData = DDP_TEST_SOURCE_DIR "/examples/data/breast_cancer.csv";

class Csv : public testing::Test {
 protected:
  ddp::test::ScratchDirectory scratch_;
  std::filesystem::path path_ = scratch_.path() / "data.csv";

  std::string refusal(const std::string& text) {
    std::ofstream(path_) << text;
    try {
      read_csv(path_);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(Csv, IsReadWhole) {
  EXPECT_EQ(refusal("3,2,no,yes\n1,-2.5,0\n1e3,0.5,1\r\n7,8,1"), "accepted");  // any line end, also none
  const Dataset dataset = read_csv(path_);
  EXPECT_EQ(dataset.samples.feature_count, 2U);
  EXPECT_THAT(dataset.samples.features, ElementsAre(1, -2.5F, 1000, 0.5F, 7, 8));
  EXPECT_THAT(dataset.samples.labels, ElementsAre(0, 1, 1));
  EXPECT_THAT(dataset.class_names, ElementsAre("no", "yes"));
}

TEST_F(Csv, ErrorsNameFileLineAndColumn) {
  const struct {
    const char* what;
    std::string text;
    std::vector<std::string> want;
  } cases[] = {
      {"empty", "", {"the file is empty"}},
      {"no header", "1,2,0\n", {"line 1", "the first line is not"}},
      {"count is text", "many,2,no,yes\n", {"line 1, column 1", "`many` is not a number"}},
      {"count is 0", "0,2,no,yes\n", {"line 1, column 1", "`0` is not a count"}},
      {"count is negative", "-1,2,no,yes\n", {"line 1, column 1", "`-1` is not a number"}},
      {"count is absurd", "99999999999999,2,no,yes\n", {"line 1, column 1", "is not a count"}},
      {"too many features", "1,99999999,no,yes\n", {"line 1, column 2", "is not a count"}},
      {"truncated", "3,2,no,yes\n1,2,0\n3,4,1\n", {"line 3", "ends after 2 samples, its first line announces 3"}},
      {"truncated in a row", "3,2,no,yes\n1,2,0\n3,4", {"line 3", "has 2 fields, not 2 features and a class"}},
      {"truncated in a number", "2,2,no,yes\n1,2,0\n3,4,", {"line 3, column 3", "`` is not a number"}},
      {"one row too many", "1,2,no,yes\n1,2,0\n3,4,1\n", {"line 3", "announces 1 samples, and here is one more"}},
      {"row too short", "2,2,no,yes\n1,0\n3,4,1\n", {"line 2", "has 2 fields"}},
      {"row too long", "2,2,no,yes\n1,2,0\n3,4,5,1\n", {"line 3", "has 4 fields"}},
      {"blank line", "2,2,no,yes\n1,2,0\n\n3,4,1\n", {"line 3", "has 1 fields"}},
      {"text", "2,2,no,yes\n1,2,0\n3,four,1\n", {"line 3, column 2", "`four` is not a number"}},
      {"text after a number", "1,2,no,yes\n1,2x,0\n", {"line 2, column 2", "`2x` is not a number"}},
      {"blank before a number", "1,2,no,yes\n1, 2,0\n", {"line 2, column 2", "` 2` is not a number"}},
      {"nan", "1,2,no,yes\nnan,2,0\n", {"line 2, column 1", "`nan` is not a finite number"}},
      {"inf", "1,2,no,yes\n1,-inf,0\n", {"line 2, column 2", "`-inf` is not a finite number"}},
      {"too large", "1,2,no,yes\n1,1e99,0\n", {"line 2, column 2", "`1e99` is out of range"}},
      {"no such class", "1,2,no,yes\n1,2,2\n", {"line 2, column 3", "`2` is not a class: there are 2"}},
      {"class is a fraction", "1,2,no,yes\n1,2,0.5\n", {"line 2, column 3", "`0.5` is not a number"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const std::string message = refusal(c.text);
    EXPECT_THAT(message, AllOf(HasSubstr("\nwhere: " + path_.string()), HasSubstr("\ntry:   ")));
    for (const std::string& want : c.want) EXPECT_THAT(message, HasSubstr(want));
  }
}

TEST_F(Csv, AMissingFileAndAFolderAreNamed) {
  const auto message_of = [](const std::filesystem::path& path) -> std::string {
    try {
      read_csv(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message_of(path_), AllOf(HasSubstr("No such file"), HasSubstr(path_.string())));
  EXPECT_THAT(message_of(scratch_.path()), AllOf(HasSubstr("Is a directory"), HasSubstr(scratch_.path().string())));
}

TEST(Split, DividesTheRealDataAndStandardisesByTheTrainingPart) {
  const Samples all = read_csv(kRealData).samples;
  ASSERT_EQ(all.size(), 569U);
  EXPECT_EQ(std::count(all.labels.begin(), all.labels.end(), 0), 212);
  const Split split = split_and_standardise(all);
  ASSERT_EQ(split.train.size(), 455U);
  ASSERT_EQ(split.test.size(), 114U);
  EXPECT_EQ(std::count(split.train.labels.begin(), split.train.labels.end(), 0) +
                std::count(split.test.labels.begin(), split.test.labels.end(), 0),
            212);
  for (std::size_t feature = 0; feature < 30; ++feature) {
    double sum = 0;
    double squares = 0;
    for (std::size_t i = feature; i < split.train.features.size(); i += 30) {
      sum += split.train.features[i];
      squares += split.train.features[i] * split.train.features[i];
    }
    EXPECT_NEAR(sum / 455, 0, 1e-5) << "feature " << feature;
    EXPECT_NEAR(squares / 455, 1, 1e-4) << "feature " << feature;
  }
  EXPECT_EQ(split_and_standardise(all).test.features, split.test.features) << "another split of the same data";
}

TEST(Split, AFeatureThatNeverChangesBecomesZero) {
  const Samples samples = {1, {5, 5, 5, 5, 5}, {0, 1, 0, 1, 0}};
  EXPECT_THAT(split_and_standardise(samples).train.features, ElementsAre(0, 0, 0, 0));
}

}  // namespace
