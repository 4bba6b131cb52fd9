// A multi-layer perceptron on one GPU: linear layers with ReLU between them, softmax cross-entropy at the end. The
// products are cuBLAS's, the rest are the small kernels of kernels.hpp.
//
// Everything is put on one stream and returns at once, so the host runs ahead of the device. Backward goes from the
// last layer to the first and says of each gradient when it is on its way, before it begins with the layer below: so a
// gradient engine can send it while the rest of backward is at work.
//
// Threads: one at a time. The same inputs on the same device and library give the same bits.
#pragma once

#include <ddp/distributed_data_parallel.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device.hpp"
#include "device_spans.hpp"

namespace train {

struct MlpShape {
  std::vector<std::size_t> widths;  // features, hidden layers, classes
  std::size_t batch_size = 1;       // rows, at most
};

class DeviceMlp {
 public:
  // The first weights come from `seed`, biases are 0. With use_tf32 products round their factors to TF32, which is much
  // faster on GPUs that have it.
  DeviceMlp(const MlpShape& shape, std::uint64_t seed, bool use_tf32, cudaStream_t stream, DeviceSpans& spans);

  // "layer1.weight" [outputs, inputs], "layer1.bias" [outputs], "layer2.weight", ...: views of this object's memory.
  std::vector<ddp::Parameter> parameters(int device);

  // Takes a batch in; both are in device memory, and stay there until backward() is done. Adds the batch's mean loss to
  // *total_loss, which is on the device too.
  void forward(const float* features, const int* labels, std::size_t rows, double* total_loss);

  // Writes the gradients of the last forward()'s mean loss. gradients[p] points at those of parameters()[p]; after the
  // last write to them was put on the stream ready(p) is called.
  void backward(const std::vector<float*>& gradients, const std::function<void(std::size_t parameter)>& ready);

  void descend(const std::vector<float*>& gradients, float learning_rate, float momentum);

  // Adds how many of these samples have their own class as the most probable one.
  void count_right(const float* features, const int* labels, std::size_t rows, unsigned* right);

 private:
  struct Layer {
    std::size_t inputs = 0;
    std::size_t outputs = 0;
    DeviceArray<float> weight;  // [outputs, inputs]
    DeviceArray<float> bias;    // [outputs]
    DeviceArray<float> weight_velocity, bias_velocity;
    std::string name;
  };
  struct CloseHandle {
    void operator()(cublasHandle_t handle) const { cublasDestroy(handle); }
  };

  const float* input_of(std::size_t layer) const;
  void run_layers(const float* features, std::size_t rows);
  // c[m, n] = a[m, k] b[n, k]^T, c[m, n] = a[m, k] b[k, n], c[m, n] = a[k, m]^T b[k, n]
  enum class Product { by_transposed, plain, transposed_by };
  void multiply(Product product, std::size_t m, std::size_t n, std::size_t k, const float* a, const float* b, float* c);

  cudaStream_t stream_;
  DeviceSpans& spans_;
  std::unique_ptr<cublasContext, CloseHandle> blas_;
  std::vector<Layer> layers_;
  std::vector<DeviceArray<float>> outputs_;  // by layer: [batch, outputs]; of the last the logits, then their gradients
  DeviceArray<float> gradients_[2];          // of a layer's output, and of its input; they take turns
  DeviceArray<float> losses_;                // by row
  const float* features_ = nullptr;          // of the last forward()
  std::size_t rows_ = 0;
};

}  // namespace train
