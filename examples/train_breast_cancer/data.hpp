// The samples: read from a CSV file, divided into a training and a test part, brought to one scale.
//
// Every rank reads the whole file; a DistributedSampler then says which samples of the training part are its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace train {

struct Samples {
  std::size_t feature_count = 0;
  std::vector<float> features;  // [size(), feature_count], row-major
  std::vector<int> labels;      // [size()], each below the number of classes

  std::size_t size() const { return labels.size(); }
};

struct Dataset {
  Samples samples;
  std::vector<std::string> class_names;
};

// Reads a file whose first line is "samples,features,name of class 0,name of class 1,...", with one sample in each line
// after it: its features, then its class. Throws InputError with file, line and column (field) for anything else.
Dataset read_csv(const std::filesystem::path& path);

struct Split {
  Samples train;
  Samples test;
};

// Shuffles, takes four fifths for training, and scales both parts by the training part's mean and standard deviation.
// Depends on nothing but the samples: runs with any number of workers, and any seed, are tested on the same ones.
Split split_and_standardise(const Samples& samples);

// The samples of these indices, in order.
Samples select(const Samples& from, const std::vector<std::int64_t>& indices);

}  // namespace train
