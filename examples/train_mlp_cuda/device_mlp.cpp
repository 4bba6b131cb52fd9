#include "device_mlp.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels.hpp"

namespace train {

DeviceMlp::DeviceMlp(const MlpShape& shape, std::uint64_t seed, bool use_tf32, cudaStream_t stream, DeviceSpans& spans)
    : stream_(stream), spans_(spans), losses_(shape.batch_size) {
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), "starting cuBLAS");
  blas_.reset(handle);
  check(cublasSetStream(handle, stream), "giving cuBLAS its stream");
  check(cublasSetMathMode(handle, use_tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH),
        "setting cuBLAS's precision");

  std::size_t widest = 0;
  for (std::size_t i = 0; i + 1 < shape.widths.size(); ++i) {
    const std::size_t inputs = shape.widths[i], outputs = shape.widths[i + 1];
    Layer layer{inputs,
                outputs,
                DeviceArray<float>(inputs * outputs),
                DeviceArray<float>(outputs),
                DeviceArray<float>(inputs * outputs),
                DeviceArray<float>(outputs),
                "layer" + std::to_string(i + 1)};
    // Keeps the variance of activations through ReLU. Source: He et al. 2015, "Delving deep into rectifiers".
    kernels::fill_uniform(layer.weight.data(), layer.weight.size(), std::sqrt(6.0F / static_cast<float>(inputs)),
                          seed + i, stream);
    for (const DeviceArray<float>* zeros : {&layer.bias, &layer.weight_velocity, &layer.bias_velocity})
      check(cudaMemsetAsync(zeros->data(), 0, zeros->bytes(), stream), "zeroing device memory");
    layers_.push_back(std::move(layer));
    outputs_.emplace_back(shape.batch_size * outputs);
    if (i > 0) widest = std::max(widest, inputs);  // nobody asks for the gradients of the data
  }
  for (auto& gradients : gradients_) gradients = DeviceArray<float>(shape.batch_size * widest);
}

std::vector<ddp::Parameter> DeviceMlp::parameters(int device) {
  const ddp::Device place{ddp::Device::Kind::cuda, device};
  std::vector<ddp::Parameter> parameters;
  for (const Layer& layer : layers_) {
    const auto inputs = static_cast<std::int64_t>(layer.inputs);
    const auto outputs = static_cast<std::int64_t>(layer.outputs);
    parameters.push_back({layer.name + ".weight",
                          {outputs, inputs},
                          {layer.weight.data(), layer.weight.size(), ddp::DataType::float32, place}});
    parameters.push_back(
        {layer.name + ".bias", {outputs}, {layer.bias.data(), layer.bias.size(), ddp::DataType::float32, place}});
  }
  return parameters;
}

const float* DeviceMlp::input_of(std::size_t layer) const {
  return layer == 0 ? features_ : outputs_[layer - 1].data();
}

// cuBLAS takes matrices by columns, so a row-major matrix is its transpose there: c = a b is asked for as c^T = b^T
// a^T.
void DeviceMlp::multiply(Product product, std::size_t m, std::size_t n, std::size_t k, const float* a, const float* b,
                         float* c) {
  const float one = 1, zero = 0;
  const bool is_b_transposed = product == Product::by_transposed, is_a_transposed = product == Product::transposed_by;
  const auto size = [](std::size_t value) { return static_cast<int>(value); };
  check(cublasSgemm(blas_.get(), is_b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                    is_a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, size(n), size(m), size(k), &one, b,
                    size(is_b_transposed ? k : n), a, size(is_a_transposed ? m : k), &zero, c, size(n)),
        "multiplying matrices");
}

void DeviceMlp::run_layers(const float* features, std::size_t rows) {
  features_ = features;
  rows_ = rows;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const auto span = spans_.begin("forward ", layer.name);
    float* const output = outputs_[i].data();
    multiply(Product::by_transposed, rows, layer.outputs, layer.inputs, input_of(i), layer.weight.data(), output);
    kernels::add_bias(output, layer.bias.data(), rows, layer.outputs, i + 1 < layers_.size(), stream_);
  }
}

void DeviceMlp::forward(const float* features, const int* labels, std::size_t rows, double* total_loss) {
  run_layers(features, rows);
  kernels::softmax_cross_entropy(outputs_.back().data(), labels, rows, layers_.back().outputs, losses_.data(), stream_);
  kernels::add_mean(losses_.data(), rows, total_loss, stream_);
}

void DeviceMlp::backward(const std::vector<float*>& gradients,
                         const std::function<void(std::size_t parameter)>& ready) {
  const float* output_gradients = outputs_.back().data();
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    const std::size_t weight = 2 * i, bias = 2 * i + 1;
    const auto span = spans_.begin("backward ", layer.name);
    kernels::sum_columns(output_gradients, rows_, layer.outputs, gradients[bias], stream_);
    multiply(Product::transposed_by, layer.outputs, layer.inputs, rows_, output_gradients, input_of(i),
             gradients[weight]);
    ready(bias);
    ready(weight);
    if (i == 0) return;
    float* const input_gradients = gradients_[i % 2].data();
    multiply(Product::plain, rows_, layer.inputs, layer.outputs, output_gradients, layer.weight.data(),
             input_gradients);
    kernels::through_relu(input_gradients, input_of(i), rows_ * layer.inputs, stream_);
    output_gradients = input_gradients;
  }
}

void DeviceMlp::descend(const std::vector<float*>& gradients, float learning_rate, float momentum) {
  const auto span = spans_.begin("optimizer");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    kernels::descend(layer.weight.data(), layer.weight_velocity.data(), gradients[2 * i], layer.weight.size(),
                     learning_rate, momentum, stream_);
    kernels::descend(layer.bias.data(), layer.bias_velocity.data(), gradients[2 * i + 1], layer.bias.size(),
                     learning_rate, momentum, stream_);
  }
}

void DeviceMlp::count_right(const float* features, const int* labels, std::size_t rows, unsigned* right) {
  run_layers(features, rows);
  kernels::count_right(outputs_.back().data(), labels, rows, layers_.back().outputs, right, stream_);
}

}  // namespace train
